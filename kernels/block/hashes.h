// Hashes of 64 bits, the same on every executor. docs/packet_format.md defines the packets' checksum.
#pragma once

#include <cstdint>

#include "kernels/block/host_device.h"

namespace isthmus::kernels {

// A bijection in which every bit of the result depends on every bit of x: the finaliser of splitmix64. Always inlined,
// because every instruction set compiles it and the linker must not merge the copies.
[[gnu::always_inline]] ISTHMUS_DEVICE uint64_t mix(uint64_t x) {
  x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9;
  x = (x ^ (x >> 27)) * 0x94d049bb133111eb;
  return x ^ (x >> 31);
}

// The distance of neighbouring numbers before they are mixed: 2^64 divided by the golden ratio, and odd.
inline constexpr uint64_t kGoldenRatio = 0x9e3779b97f4a7c15;

// What a unit's random draws in a step begin with, so that each step draws others. Always inlined, as mix() is.
[[gnu::always_inline]] ISTHMUS_DEVICE uint64_t seed_of_step(uint64_t unit_hash, uint64_t step) {
  constexpr uint64_t kOdd = 0xd1342543de82ef95;
  return unit_hash ^ (step + 1) * kOdd;
}

inline constexpr int64_t kChecksumWordBytes = 8;

// Multiplies both halves as 32-bit numbers: one instruction of a GPU, and of vectors.
ISTHMUS_DEVICE uint64_t product_of_halves(uint64_t x) { return (x & 0xffffffff) * (x >> 32); }

// A word's summand in the checksum, which is the sum over all words modulo 2^64. It depends on the word's place, but
// the sum depends on no order: whoever has a word in a register adds its summand.
ISTHMUS_DEVICE uint64_t checksum_of_word(uint64_t word, int64_t place) {
  const uint64_t number = static_cast<uint64_t>(place + 1) * kGoldenRatio;
  const uint64_t key = number ^ product_of_halves(number);
  const uint32_t low = static_cast<uint32_t>(word) + static_cast<uint32_t>(key);
  const uint32_t high = static_cast<uint32_t>(word >> 32) + static_cast<uint32_t>(key >> 32);
  return uint64_t{low} * high + (uint64_t{low} << 32 | high);
}

}  // namespace isthmus::kernels
