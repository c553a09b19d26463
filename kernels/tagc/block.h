// Block algorithms of codec `tagc`: the work of a group on one block or one row of the sketch. Bit fields are words of
// 64 bits on CPU and of 32 on CUDA, whose atomics are of that size: the bits lie at the same places.
#pragma once

#include "kernels/block/group.h"
#include "kernels/block/hashes.h"
#include "kernels/tagc/layout.h"

namespace isthmus::kernels::ISTHMUS_KERNEL_NAMESPACE {

inline constexpr uint32_t kMagnitudeMask = 0x7fffffff;
inline constexpr uint32_t kNanBits = 0x7fc00000;  // the only NaN that is ever sent or written
inline constexpr uint64_t kGoldenRatio = 0x9e3779b97f4a7c15;

ISTHMUS_DEVICE uint32_t bits_of(float value) {
  uint32_t bits;
  __builtin_memcpy(&bits, &value, sizeof(bits));
  return bits;
}

ISTHMUS_DEVICE float float_of(uint32_t bits) {
  float value;
  __builtin_memcpy(&value, &bits, sizeof(value));
  return value;
}

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

// Whether a sum piece[i] + residual[i] is NaN or Inf.
template <typename Group>
ISTHMUS_DEVICE bool sums_non_finite(Group group, const float* piece, const float* residual, int64_t count) {
  uint32_t overflow = 0;  // the top bit: some exponent was all ones
  for (int64_t i = group.thread(); i < count; i += group.size()) {
    overflow |= magnitude(piece[i] + residual[i]) + (kMagnitudeMask + 1 - kInfinityBits);
  }
  return group.any(overflow > kMagnitudeMask);
}

// Adds one block's keys to the cells of a row: `once` has those hit by one key or more, `twice` by two or more.
template <typename Group, typename Word>
ISTHMUS_DEVICE void count_keys(Group group, const Word* __restrict keys, int64_t words, Word* __restrict once,
                               Word* __restrict twice) {
  for (int64_t w = group.thread(); w < words; w += group.size()) {
    const Word before = group.fetch_or(once[w], keys[w]);
    group.fetch_or(twice[w], before & keys[w]);
  }
}

// Clears in `once` all cells but those with exactly one key.
template <typename Group, typename Word>
ISTHMUS_DEVICE void keep_singles(Group group, int64_t words, Word* __restrict once, const Word* __restrict twice) {
  for (int64_t w = group.thread(); w < words; w += group.size()) {
    once[w] &= ~twice[w];
  }
}

// The keys of one block that peel in this round.
struct BlockStatus {
  bool peeled;
  bool left;
};

// Moves keys that are alone in one of their three cells from `keys` to `peeled`.
template <typename Group, typename Word>
ISTHMUS_DEVICE BlockStatus take_single_keys(Group group, const Word* __restrict single0, const Word* __restrict single1,
                                            const Word* __restrict single2, int64_t words, Word* __restrict keys,
                                            Word* __restrict peeled) {
  Word any_peeled = 0;
  Word any_left = 0;
  for (int64_t w = group.thread(); w < words; w += group.size()) {
    const Word single = single0[w] | single1[w] | single2[w];
    peeled[w] = keys[w] & single;
    keys[w] &= ~single;
    any_peeled |= peeled[w];
    any_left |= keys[w];
  }
  return {group.any(any_peeled != 0), group.any(any_left != 0)};
}

// Removes from `keys` those without a cell that no earlier key took; the others take all their cells. The keys that
// stay peel, the last one first. The three rows of a block differ.
template <typename Group, typename Word>
ISTHMUS_DEVICE void admit_keys(Group group, Word* __restrict taken0, Word* __restrict taken1, Word* __restrict taken2,
                               int64_t words, Word* __restrict keys) {
  for (int64_t w = group.thread(); w < words; w += group.size()) {
    keys[w] &= ~(taken0[w] & taken1[w] & taken2[w]);
    taken0[w] |= keys[w];
    taken1[w] |= keys[w];
    taken2[w] |= keys[w];
  }
}

// A cell that combines bit patterns of values (kernels/tagc/cells.h) by XOR: exact in any order, and values cannot
// disturb each other.
template <typename Pattern>
struct XorCell {
  using Type = Pattern;
  static ISTHMUS_DEVICE Pattern value(Pattern cell, bool /*negative*/) { return cell; }
  template <typename Group>
  static ISTHMUS_DEVICE void insert(Group group, Pattern& cell, Pattern pattern, bool /*negative*/) {
    group.apply_xor(cell, pattern);
  }
  template <typename Group>
  static ISTHMUS_DEVICE void remove(Group group, Pattern& cell, Pattern pattern, bool /*negative*/) {
    group.apply_xor(cell, pattern);
  }
};

// A cell that adds signed values. Sums depend on the order of rounding, so one thread of the group makes all updates of
// a column, in ascending order of blocks.
struct SumCell {
  using Type = float;
  static ISTHMUS_DEVICE float value(float cell, bool negative) { return negative ? -cell : cell; }
  template <typename Group>
  static ISTHMUS_DEVICE void insert(Group, float& cell, float value, bool negative) {
    cell += negative ? -value : value;
  }
  template <typename Group>
  static ISTHMUS_DEVICE void remove(Group, float& cell, float value, bool negative) {
    cell -= negative ? -value : value;
  }
};

// The three cells of one column that belong to one block.
template <typename Cell>
struct BlockCells {
  using Value = typename Cell::Type;

  Value* row[3];
  uint32_t negative;

  ISTHMUS_DEVICE BlockCells(const BlockRows& rows, int64_t columns, Value* cells)
      : row{cells + rows.row[0] * columns, cells + rows.row[1] * columns, cells + rows.row[2] * columns},
        negative(rows.negative) {}

  ISTHMUS_DEVICE bool is_negative(int i) const { return (negative >> i & 1) != 0; }
  ISTHMUS_DEVICE Value value(int i, int64_t column) const { return Cell::value(row[i][column], is_negative(i)); }

  template <typename Group>
  ISTHMUS_DEVICE void insert(Group group, int64_t column, Value value) const {
    for (int i = 0; i < 3; ++i) {
      Cell::insert(group, row[i][column], value, is_negative(i));
    }
  }
  template <typename Group>
  ISTHMUS_DEVICE void remove(Group group, int64_t column, Value value) const {
    for (int i = 0; i < 3; ++i) {
      Cell::remove(group, row[i][column], value, is_negative(i));
    }
  }
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

template <typename Group, typename Word, typename Visit>
ISTHMUS_DEVICE void for_each_key(Group group, const Word* keys, int64_t words, Visit visit) {
  constexpr int64_t kBits = 8 * sizeof(Word);
  for (int64_t w = group.thread(); w < words; w += group.size()) {
    for_each_bit(keys[w], kBits * w, visit);
  }
}

// Recovers the values of a block's `peeled` keys, each from the first cell that it has alone. It takes them out of the
// sketch and calls emit(column, value).
template <typename Group, typename Cell, typename Word, typename Emit>
ISTHMUS_DEVICE void recover_values(Group group, const BlockCells<Cell>& cells, const Word* peeled, int64_t words,
                                   const Word* single0, const Word* single1, Emit emit) {
  constexpr int64_t kBits = 8 * sizeof(Word);
  for (int64_t w = group.thread(); w < words; w += group.size()) {
    const Word alone0 = peeled[w] & single0[w];
    const Word alone1 = peeled[w] & single1[w] & ~single0[w];
    const Word alone2 = peeled[w] & ~(single0[w] | single1[w]);
    const auto recover_from = [&](int i) {
      return [&, i](int64_t column) {
        const auto value = cells.value(i, column);
        cells.remove(group, column, value);
        emit(column, value);
      };
    };
    for_each_bit(alone0, kBits * w, recover_from(0));
    for_each_bit(alone1, kBits * w, recover_from(1));
    for_each_bit(alone2, kBits * w, recover_from(2));
  }
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
