// What the CPU and GPUs share of codec `tagc`: rows and signs of blocks, cells that add, and bit fields. Those are
// words of 64 bits on CPU and of 32 on CUDA, whose atomics are of that size: the bits lie at the same places.
#pragma once

#include "kernels/block/float_types.h"
#include "kernels/block/group.h"
#include "kernels/block/hashes.h"
#include "kernels/tagc/layout.h"

namespace isthmus::kernels::ISTHMUS_KERNEL_NAMESPACE {

inline constexpr uint32_t kMagnitudeMask = 0x7fffffff;
inline constexpr uint32_t kNanBits = 0x7fc00000;  // the only NaN that is ever sent or written
inline constexpr uint64_t kGoldenRatio = 0x9e3779b97f4a7c15;

ISTHMUS_DEVICE uint32_t magnitude(float value) { return bits_of(value) & kMagnitudeMask; }

// The rows of one block: row i is drawn from the i-th third of the sketch, so that the three always differ.
ISTHMUS_DEVICE BlockRows hash_block(uint64_t seed, int64_t block, int64_t num_rows) {
  BlockRows rows = {};
  for (int i = 0; i < 3; ++i) {
    const uint64_t hash = mix(seed + kGoldenRatio * static_cast<uint64_t>(3 * block + i + 1));
    const uint64_t first = static_cast<uint64_t>(num_rows * i / 3);
    const uint64_t end = static_cast<uint64_t>(num_rows * (i + 1) / 3);
    rows.row[i] = static_cast<uint32_t>(first + ((hash >> 32) * (end - first) >> 32));
    rows.negative |= static_cast<uint32_t>(hash & 1) << i;
  }
  return rows;
}

// A cell that adds signed values. Sums depend on the order of rounding, so one thread makes all updates of a column, in
// ascending order of blocks.
struct SumCell {
  using Type = float;
  static ISTHMUS_DEVICE float value(float cell, bool negative) { return negative ? -cell : cell; }
  static ISTHMUS_DEVICE void insert(float& cell, float value, bool negative) { cell += negative ? -value : value; }
};

// A cell that combines bits of values by XOR: exact in any order, and values cannot disturb each other.
struct XorCell {
  using Type = uint32_t;
  static ISTHMUS_DEVICE uint32_t value(uint32_t cell, bool /*negative*/) { return cell; }
  static ISTHMUS_DEVICE void insert(uint32_t& cell, uint32_t bits, bool /*negative*/) { cell ^= bits; }
};

// The number of the lowest set bit; there is one.
ISTHMUS_DEVICE int lowest_bit(uint64_t word) {
#ifdef __CUDA_ARCH__
  return __ffsll(static_cast<long long>(word)) - 1;
#else
  return __builtin_ctzll(word);
#endif
}

// Calls visit(i) for each set bit i of `word`, ascending, with `first` added.
template <typename Word, typename Visit>
ISTHMUS_DEVICE void for_each_bit(Word word, int64_t first, Visit visit) {
  for (; word != 0; word &= word - 1) {
    visit(first + lowest_bit(word));
  }
}

// The bits of the first `count` set bits of `word`.
template <typename Word>
ISTHMUS_DEVICE Word first_bits(Word word, int64_t count) {
  Word rest = word;
  for (; count > 0 && rest != 0; --count) {
    rest &= rest - 1;
  }
  return word & ~rest;
}

ISTHMUS_DEVICE bool is_flagged(const uint64_t* flags, int64_t block) {
  return (flags[block / 64] >> (block % 64) & 1) != 0;
}

ISTHMUS_DEVICE float median_or_nan(float a, float b, float c) {
  if (a != a || b != b || c != c) {
    return float_of(kNanBits);
  }
  const float low = a < b ? a : b;
  const float high = a < b ? b : a;
  const float capped = high < c ? high : c;
  return low < capped ? capped : low;
}

}  // namespace isthmus::kernels::ISTHMUS_KERNEL_NAMESPACE
