// The checksum of packets. docs/packet_format.md defines it.
#pragma once

#include <array>
#include <bit>
#include <cstddef>
#include <cstdint>
#include <cstring>

namespace isthmus {

// Of 64-bit words, in eight lanes that do not wait for each other. A step is one to one in the lane and in the word,
// and so is the end in every lane: damage to one word, whatever it is, always shows.
class Checksum {
 public:
  // The next `num_bytes` of the data: a multiple of 8, and of 64 in every call but the last. No alignment is needed.
  void add(const void* data, int64_t num_bytes) {
    std::array<uint64_t, kLanes> lanes = lanes_;  // in registers: `data` may alias this object, for all it is known
    const auto* bytes = static_cast<const std::byte*>(data);
    for (; num_bytes >= kRowBytes; num_bytes -= kRowBytes, bytes += kRowBytes) {
      add_words(bytes, kLanes, lanes);
    }
    add_words(bytes, num_bytes / kWordBytes, lanes);
    lanes_ = lanes;
  }

  uint64_t value() const {
    uint64_t value = 0;
    for (const uint64_t lane : lanes_) {
      value = mix(value, lane);
    }
    return value;
  }

 private:
  static constexpr int64_t kLanes = 8;
  static constexpr int64_t kWordBytes = 8;
  static constexpr int64_t kRowBytes = kLanes * kWordBytes;

  static uint64_t mix(uint64_t state, uint64_t word) { return std::rotl((state ^ word) * 0x9e3779b97f4a7c15u, 29); }

  static void add_words(const std::byte* bytes, int64_t num_words, std::array<uint64_t, kLanes>& lanes) {
    for (int64_t lane = 0; lane < num_words; ++lane) {
      uint64_t word = 0;
      std::memcpy(&word, bytes + lane * kWordBytes, kWordBytes);
      lanes[lane] = mix(lanes[lane], word);
    }
  }

  std::array<uint64_t, kLanes> lanes_ = {1, 2, 3, 4, 5, 6, 7, 8};
};

}  // namespace isthmus
