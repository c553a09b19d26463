// What packets of all codecs have, as docs/packet_format.md describes it: bytes at named offsets. Shares no code with
// the library.
#pragma once

#include <cstdint>
#include <cstring>
#include <vector>

namespace isthmus::reference {

// Of splitmix64, by which rotations and cells are drawn.
inline uint64_t scramble(uint64_t x) {
  x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9;
  x = (x ^ (x >> 27)) * 0x94d049bb133111eb;
  return x ^ (x >> 31);
}

template <typename T>
void put(std::vector<uint8_t>& bytes, int64_t offset, T value) {
  std::memcpy(bytes.data() + offset, &value, sizeof(value));
}

inline int64_t up_to_64(int64_t bytes) { return (bytes + 63) / 64 * 64; }

// Of all bytes from `begin` on.
inline uint64_t checksum_of_docs(const std::vector<uint8_t>& packet, size_t begin) {
  uint64_t sum = 0;
  for (size_t place = 0; place < (packet.size() - begin) / 8; ++place) {
    uint32_t halves[2];
    std::memcpy(halves, packet.data() + begin + 8 * place, 8);
    const uint64_t number = (place + 1) * 0x9e3779b97f4a7c15;
    const uint64_t key = number ^ (number & 0xffffffff) * (number >> 32);
    const uint32_t low = halves[0] + static_cast<uint32_t>(key);
    const uint32_t high = halves[1] + static_cast<uint32_t>(key >> 32);
    sum += uint64_t{low} * high + (uint64_t{low} << 32) + high;
  }
  return sum;
}

// The header but for the codec's settings, of a packet that has all else. parameters: unit_hash, step, segment, sender.
template <typename Parameters>
void put_header(std::vector<uint8_t>& packet, uint8_t codec, const Parameters& parameters, int64_t num_elements) {
  put<uint32_t>(packet, 0, 0x4d485349);
  put<uint8_t>(packet, 4, 6);  // version
  put<uint8_t>(packet, 5, codec);
  put<uint8_t>(packet, 6, 1);  // float32
  put<uint8_t>(packet, 7, parameters.segment);
  put<uint64_t>(packet, 8, parameters.unit_hash);
  put<uint64_t>(packet, 16, parameters.step);
  put<uint64_t>(packet, 24, static_cast<uint64_t>(num_elements));
  put<uint16_t>(packet, 30, parameters.sender);
  put<uint64_t>(packet, 40, checksum_of_docs(packet, 48));
}

}  // namespace isthmus::reference
