// The code of weight differences: how a shard is cut, and what a block of it becomes. docs/weights.md describes the
// code, its source and what it costs; docs/packet_format.md the bytes.
#pragma once

#include <algorithm>
#include <array>
#include <cstdint>

namespace isthmus::kernels {

inline constexpr int kWeightLanes = 16;                 // element i of a block belongs to lane i mod 16
inline constexpr int64_t kWeightBlockElements = 16384;  // 1024 a lane: a lane's state costs about 26 bits
inline constexpr int64_t kWeightGroupElements = 1024;   // neighbours that share one estimate of how far they moved
inline constexpr int64_t kWeightGroups = kWeightBlockElements / kWeightGroupElements;

// Symbols: 32 tokens under one of 16 laws, each a row of frequencies that sum up to 1024 (laws.h).
inline constexpr int kWeightLaws = 16;
inline constexpr int kWeightTokens = 32;
inline constexpr int kWeightEscape = 31;    // the token of an element whose new pattern is sent as it is
inline constexpr int kWeightNoChange = 15;  // the token of an element that did not move, in a law of small steps
inline constexpr int kWeightSlotBits = 10;
inline constexpr int kWeightSlots = 1 << kWeightSlotBits;

// States of the coder lie in [2^10, 2^26). What exceeds that is sent in words of 16 bits.
inline constexpr uint32_t kWeightLeastState = 1U << kWeightSlotBits;
inline constexpr int kWeightWordBits = 16;
// In a step a lane sends at most one word for its token, and one for each kWeightPlainBits plain bits.
inline constexpr int kWeightPlainBits = 10;

// A floating-point type as bits: sign, exponent, mantissa.
template <typename BitsType, int mantissa_bits>
struct WeightFormat {
  using Bits = BitsType;
  static constexpr int kBits = 8 * sizeof(Bits);
  static constexpr int kMantissaBits = mantissa_bits;
  static constexpr int kExponentBits = kBits - 1 - mantissa_bits;
  static constexpr int kBias = (1 << (kExponentBits - 1)) - 1;
  static constexpr int kPlainStages = (mantissa_bits + kWeightPlainBits - 1) / kWeightPlainBits;
  // The most words of a block.
  static constexpr int64_t kMostWords = kWeightBlockElements * (1 + kPlainStages) + kWeightLanes;
};
using BFloat16Weights = WeightFormat<uint16_t, 7>;
using Float16Weights = WeightFormat<uint16_t, 10>;
using Float32Weights = WeightFormat<uint32_t, 23>;

// Begins a coded block; words, then indices and patterns of escapes follow.
struct WeightBlockHeader {
  std::array<int8_t, kWeightGroups> moved;    // log2 of the mean |new - old| of each group, rounded
  std::array<uint16_t, kWeightLanes> states;  // of the lanes, at the start of decoding
  uint16_t num_escapes = 0;
};
static_assert(sizeof(WeightBlockHeader) == 50);

inline constexpr int64_t num_weight_blocks(int64_t num_elements) {
  return (num_elements + kWeightBlockElements - 1) / kWeightBlockElements;
}
inline constexpr int64_t elements_of_weight_block(int64_t block, int64_t num_elements) {
  return std::min(kWeightBlockElements, num_elements - block * kWeightBlockElements);
}

}  // namespace isthmus::kernels
