// What tests of codec quant on the CPU share: options, contexts, and what arrives of a piece.
#pragma once

#include <vector>

#include "codec/quant/host.h"
#include "tests/cpp/codec/quant/quant_reference.h"
#include "tests/cpp/support/packets.h"

namespace isthmus {

inline constexpr PacketContext kContext = {.unit_hash = 0xfedcba9876543210, .step = 7, .segment = 2, .sender = 5};
inline constexpr int kWidths[] = {1, 2, 3, 4, 8};

inline Options options_of(int64_t bits) {
  Options options;
  options.bits = bits;
  return options;
}

inline Options with_feedback(Options options) {
  options.error_feedback = ErrorFeedback::kOn;
  return options;
}

inline reference::QuantParameters parameters_of(const Options& options, PacketContext context = kContext) {
  return {.bits = static_cast<int>(options.bits),
          .error_feedback = options.error_feedback == ErrorFeedback::kOn,
          .unit_hash = context.unit_hash,
          .step = context.step,
          .segment = context.segment,
          .sender = context.sender};
}

inline Packet encoded(QuantCodec& codec, const std::vector<float>& piece, std::vector<float>& residual,
                      PacketContext context = kContext, CodecCounts* counts = nullptr) {
  Packet packet(codec.packet_bytes(static_cast<int64_t>(piece.size())));
  const CodecCounts result = codec.encode(buffer_of(piece), buffer_of(residual), packet.buffer(), context, {});
  if (counts != nullptr) {
    *counts = result;
  }
  return packet;
}

inline std::vector<float> decoded(QuantCodec& codec, Packet& packet, size_t num_elements,
                                  PacketContext context = kContext) {
  std::vector<float> out(num_elements);
  codec.decode_sum(packet.buffer(), 1, buffer_of(out), context, {});
  return out;
}

// What arrives of a piece without error feedback.
inline std::vector<float> sent(const Options& options, const std::vector<float>& piece,
                               PacketContext context = kContext) {
  QuantCodec codec(options);
  std::vector<float> none;
  Packet packet = encoded(codec, piece, none, context);
  return decoded(codec, packet, piece.size(), context);
}

}  // namespace isthmus
