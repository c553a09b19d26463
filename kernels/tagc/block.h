// What the CPU and GPUs share of codec `tagc`: rows and signs of blocks, cells that add, and bit fields. Those are
// words of 64 bits on CPU and of 32 on CUDA, whose atomics are of that size: the bits lie at the same places.
#pragma once

#include "kernels/block/float_types.h"
#include "kernels/block/hashes.h"
#include "kernels/block/passes.h"
#include "kernels/tagc/job.h"

namespace isthmus::kernels::ISTHMUS_KERNEL_NAMESPACE {

// The rows of one block: row i is drawn from the i-th third of the sketch, so that the three always differ. seed: that
// of the step, so that blocks which collide in one step do not in the next.
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

// Whether this thread finds a byte other than 0 from `begin` to `end`.
template <typename Group>
ISTHMUS_DEVICE bool any_set(const Group& group, const uint8_t* bytes, int64_t begin, int64_t end) {
  uint32_t set = 0;
  for_each_of_group(group, end - begin, [&](int64_t i) { set |= bytes[begin + i]; });
  return set != 0;
}

// Whether this thread finds a bit at or after `num_bits`.
template <typename Group>
ISTHMUS_DEVICE bool any_past(const Group& group, const uint64_t* words, int64_t num_words, int64_t num_bits) {
  bool found = false;
  const int64_t whole = num_bits / 64;
  for_each_of_group(group, num_words - whole,
                    [&](int64_t i) { found |= (i == 0 ? words[whole] >> (num_bits % 64) : words[whole + i]) != 0; });
  return found;
}

// What is wrong with a packet between header and sketch: bits of found_fault(). If nothing is, no mark leads outside
// the piece, even in a forged packet. All threads of a group call it and get the answer.
template <typename Group>
ISTHMUS_DEVICE uint32_t find_faults(Group& group, const TagcShape& shape, const TagcLayout& layout,
                                    const uint8_t* packet) {
  const auto* flags = reinterpret_cast<const uint64_t*>(packet + layout.flags);
  const auto* index = reinterpret_cast<const uint64_t*>(packet + layout.index);
  const bool padding = any_set(group, packet, kHeaderWords * 8, layout.flags) ||
                       any_set(group, packet, layout.flags + 8 * shape.flag_words(), layout.index) ||
                       any_set(group, packet, layout.index + 8 * shape.index_words(), layout.sketch);
  bool empty = false;
  for_each_of_group(group, shape.flag_words(), [&](int64_t w) {
    for_each_bit(flags[w], 64 * w, [&](int64_t block) {
      bool is_marked = block >= shape.num_blocks;  // a fault of its own
      for (int64_t i = 0; !is_marked && i < shape.block_words(); ++i) {
        is_marked = index[block * shape.block_words() + i] != 0;
      }
      empty |= !is_marked;
    });
  });
  const auto found_by_any = [&](FaultKind kind, bool is_found) { return group.any(is_found) ? found_fault(kind) : 0; };
  uint32_t found = found_by_any(FaultKind::kPadding, padding);
  found |= found_by_any(FaultKind::kFlags, any_past(group, flags, shape.flag_words(), shape.num_blocks));
  found |= found_by_any(FaultKind::kIndex, any_past(group, index, shape.index_words(), shape.num_elements));
  return found | found_by_any(FaultKind::kEmptyBlock, empty);
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
