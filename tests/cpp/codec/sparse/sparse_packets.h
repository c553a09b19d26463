// What tests of codec sparse share: options, contexts and forged packets.
#pragma once

#include <cstdint>
#include <cstring>
#include <string>
#include <vector>

#include "codec/sparse/host.h"
#include "tests/cpp/codec/sparse/sparse_reference.h"
#include "tests/cpp/support/packets.h"

namespace isthmus {

inline constexpr PacketContext kContext = {.unit_hash = 0xfedcba9876543210, .step = 7, .segment = 3, .sender = 5};

inline Options sparse_options(double sparsity, const std::string& value_type = "bf16",
                              const std::string& error_feedback = "codec") {
  Options options;
  options.sparsity = sparsity;
  options.value_type = value_type;
  options.error_feedback = error_feedback;
  return options;
}

inline reference::SparseParameters parameters_of(const Options& options, PacketContext context = kContext) {
  return {options.sparsity, options.value_type, context.unit_hash, context.step, context.segment, context.sender};
}

// Writes the checksum that the packet's bytes have now, as a forger would.
inline void reseal(Packet& packet) {
  const uint64_t checksum = reference::checksum_of_docs(packet.copy(), 48);
  std::memcpy(packet.data() + 40, &checksum, sizeof(checksum));
}

inline CodecCounts encode(Codec& codec, const std::vector<float>& piece, std::vector<float>& residual, Packet& packet) {
  return encode(codec, piece, residual, packet, kContext);
}

inline std::vector<float> decode(Codec& codec, Packet& packet, int64_t num_elements) {
  return decode(codec, packet, num_elements, kContext);
}

}  // namespace isthmus
