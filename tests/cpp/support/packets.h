// What tests of all codecs share: packets, buffers of float32 values, and their bits.
#pragma once

#include <algorithm>
#include <bit>
#include <cstdint>
#include <cstring>
#include <vector>

#include "base/aligned_memory.h"
#include "isthmus/codec.h"

namespace isthmus {

// Memory as codecs' contract wants it: 64-byte aligned, dirty before it is written, and of exactly this size unless
// bytes behind it are to show whether something writes there.
struct Packet {
  explicit Packet(int64_t num_bytes, int64_t bytes_behind = 0)
      : memory(allocate_aligned(num_bytes + bytes_behind)), bytes(num_bytes), behind(bytes_behind) {
    std::memset(memory.get(), 0xa5, num_bytes + bytes_behind);
  }
  uint8_t* data() const { return reinterpret_cast<uint8_t*>(memory.get()); }
  std::vector<uint8_t> copy() const { return {data(), data() + bytes}; }
  Buffer buffer() const { return {memory.get(), bytes, DataType::kByte}; }
  bool ends_intact() const {
    return std::all_of(data() + bytes, data() + bytes + behind, [](uint8_t byte) { return byte == 0xa5; });
  }

  AlignedMemory memory;
  int64_t bytes;
  int64_t behind;
};

inline Packet new_packet(const Codec& codec, int64_t num_elements) { return Packet(codec.packet_bytes(num_elements)); }

inline Buffer buffer_of(std::vector<float>& values) {
  return {values.data(), static_cast<int64_t>(values.size()), DataType::kFloat32};
}
inline ConstBuffer buffer_of(const std::vector<float>& values) {
  return {values.data(), static_cast<int64_t>(values.size()), DataType::kFloat32};
}

inline std::vector<uint32_t> bits_of(const std::vector<float>& values) {
  std::vector<uint32_t> bits;
  for (const float value : values) {
    bits.push_back(std::bit_cast<uint32_t>(value));
  }
  return bits;
}

inline CodecCounts encode(HostCodec& codec, const std::vector<float>& piece, std::vector<float>& residual,
                          Packet& packet, PacketContext context) {
  return codec.encode(buffer_of(piece), buffer_of(residual), packet.buffer(), context, {});
}

inline std::vector<float> decode(HostCodec& codec, Packet& packet, int64_t num_elements, PacketContext context) {
  std::vector<float> out(num_elements);
  codec.decode_sum(packet.buffer(), 1, buffer_of(out), context, {});
  return out;
}

}  // namespace isthmus
