// What tests of codec sparse share: options, packets and buffers.
#pragma once

#include <bit>
#include <cstdint>
#include <cstring>
#include <string>
#include <vector>

#include "codec/sparse/host.h"
#include "communicator/scratch.h"
#include "kernels/block/checksum.h"
#include "tests/cpp/codec/sparse/sparse_reference.h"

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

// A packet as the contract wants it: 64-byte aligned, and dirty before it is written.
struct Packet {
  explicit Packet(int64_t num_bytes) : memory(allocate_aligned(num_bytes)), bytes(num_bytes) {
    std::memset(memory.get(), 0xa5, num_bytes);
  }
  uint8_t* data() { return reinterpret_cast<uint8_t*>(memory.get()); }
  std::vector<uint8_t> copy() { return {data(), data() + bytes}; }
  Buffer buffer() { return {memory.get(), bytes, DataType::kByte}; }

  // Writes the checksum that the bytes have now, as a forger would.
  void reseal() {
    const uint64_t checksum = reference::checksum_of_docs(copy(), 48);
    std::memcpy(data() + 40, &checksum, sizeof(checksum));
  }

  AlignedMemory memory;
  int64_t bytes;
};

inline Buffer buffer_of(std::vector<float>& values) {
  return {values.data(), static_cast<int64_t>(values.size()), DataType::kFloat32};
}
inline ConstBuffer buffer_of(const std::vector<float>& values) {
  return {values.data(), static_cast<int64_t>(values.size()), DataType::kFloat32};
}

inline CodecCounts encode(Codec& codec, const std::vector<float>& piece, std::vector<float>& residual, Packet& packet,
                          PacketContext context = kContext) {
  return codec.encode(buffer_of(piece), buffer_of(residual), packet.buffer(), context, {});
}

inline Packet new_packet(const Codec& codec, int64_t num_elements) { return Packet(codec.packet_bytes(num_elements)); }

inline std::vector<float> decode(Codec& codec, Packet& packet, int64_t num_elements, PacketContext context = kContext) {
  std::vector<float> out(num_elements);
  codec.decode_sum(packet.buffer(), 1, buffer_of(out), context, {});
  return out;
}

inline std::vector<uint32_t> bits_of(const std::vector<float>& values) {
  std::vector<uint32_t> bits;
  for (const float value : values) {
    bits.push_back(std::bit_cast<uint32_t>(value));
  }
  return bits;
}

}  // namespace isthmus
