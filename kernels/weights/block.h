// The block algorithm of weight differences (docs/weights.md): the same on every executor, a template over Group, whose
// threads share the words of a block in order, and over Words, which turns the elements of a word to bits and back
// (words.h; the CPU has its own).
//
// All threads of a group make the same calls. What they return is known to all.
#pragma once

#include <cstdint>

#include "kernels/block/passes.h"
#include "kernels/weights/bits.h"
#include "kernels/weights/layout.h"

namespace isthmus::kernels::ISTHMUS_KERNEL_NAMESPACE {

// The words that a thread has, of so many: neighbours, so that what comes before a thread's is other threads'.
struct OwnWords {
  int first;
  int end;

  template <typename Group>
  ISTHMUS_DEVICE OwnWords(const Group& group, int count)
      : first(static_cast<int>(count * group.thread() / group.size())),
        end(static_cast<int>(count * (group.thread() + 1) / group.size())) {}
};

// How a string of bits is sent.
struct WeightString {
  static constexpr int kShort = 16;  // shorter ones have no head, and are sent as they are
  static constexpr int kHeadBits = 5;
  static constexpr uint32_t kAsItIs = 0;
  static constexpr uint32_t kNone = 15;  // no ones

  // Else the gaps between ones are sent: what is left of a gap after `low_bits` lower bits in unary, all of these
  // first.
  uint32_t low_bits = kAsItIs;
  bool is_inverted = false;

  ISTHMUS_DEVICE bool is_of_gaps() const { return low_bits != kAsItIs && low_bits != kNone; }
  ISTHMUS_DEVICE uint32_t head() const { return low_bits | (is_inverted ? 16U : 0U); }
  ISTHMUS_DEVICE uint64_t inversion(int count) const { return is_inverted ? lower_bits(count) : 0; }

  static ISTHMUS_DEVICE WeightString of_head(uint64_t head) {
    return {static_cast<uint32_t>(head & 15), (head & 16) != 0};
  }
  // Golomb's choice of low bits for gaps of this mean, among powers of two.
  static ISTHMUS_DEVICE WeightString best_for(uint32_t num_bits, uint32_t num_ones) {
    const bool inverted = 2 * num_ones > num_bits;
    const uint32_t ones = inverted ? num_bits - num_ones : num_ones;
    if (ones == 0) {
      return {kNone, inverted};
    }
    if (8 * ones >= 3 * num_bits) {
      return {kAsItIs, false};
    }
    uint32_t low = 1;
    while ((ones << low) * 1000 <= 481 * num_bits - 240 * ones) {
      ++low;
    }
    return {low, inverted};
  }
};
// Bits of the length of the unary part, at most as long as the string.
ISTHMUS_DEVICE int bits_of_length(uint32_t num_bits) { return highest_one(num_bits) + 1; }

// Few moves are told by few classes.
inline constexpr int kWeightShiftBits = 2;
ISTHMUS_DEVICE uint32_t class_shift_for(uint32_t num_changed, uint32_t num_elements) {
  return num_changed * 128 < num_elements ? 2 : 1;
}

// What encoding and decoding share.
template <typename Format, typename Group>
class WeightBlock {
 public:
  ISTHMUS_DEVICE WeightBlock(Group& group, WeightMasks<Format>& masks, int num_elements)
      : group_(&group),
        masks_(&masks),
        num_words_((num_elements + kWeightWordElements - 1) / kWeightWordElements),
        own_(group, num_words_) {}

 protected:
  // Keeps the words that have elements of a class, up to the one returned; visit(members, word) for each of all words.
  template <typename Visit>
  ISTHMUS_DEVICE int keep_class(uint32_t of_class, uint32_t shift, const Visit& visit) const {
    for (int word = own_.first; word < own_.end; ++word) {  // a loop of its own, for vectors
      uint64_t members = ~uint64_t{0};
      ISTHMUS_UNROLL
      for (uint32_t bit = 0; bit < kWeightClassBits; ++bit) {
        const uint64_t is_other = (of_class << shift >> bit & 1) != 0 ? 0 : ~uint64_t{0};
        const uint64_t is_left_out = bit < shift ? ~uint64_t{0} : 0;
        members &= (masks_->exponent[bit][word] ^ is_other) | is_left_out;
      }
      masks_->members[word] = members;
    }
    int end = own_.first;
    for (int word = own_.first; word < own_.end; ++word) {
      const uint64_t members = masks_->members[word];
      visit(members, word);
      keep(members, word, end);
    }
    return end;
  }
  // Keeps words of members in front, at `place` of this thread's.
  ISTHMUS_DEVICE void keep(uint64_t members, int word, int& place) const {
    masks_->members[place] = members;
    masks_->places[place] = static_cast<uint16_t>(word);
    place += members != 0 ? 1 : 0;
  }
  // Bits of values before this thread's words.
  ISTHMUS_DEVICE uint32_t value_bits_before(int num_levels) const {
    uint32_t own_bits = 0;
    for (int level = 0; level < num_levels && group_->size() > 1; ++level) {
      for (int word = own_.first; word < own_.end; ++word) {
        own_bits += count_ones(masks_->level[level][word]);
      }
    }
    uint32_t total = 0;
    return group_->exclusive_sum(own_bits, total);
  }
  // Two sums at once, of what is below 2^16.
  ISTHMUS_DEVICE void sum_both(uint32_t (&value)[2], uint32_t (&total)[2]) const {
    uint32_t both = 0;
    const uint32_t before = group_->exclusive_sum(value[0] | value[1] << 16, both);
    total[0] = both & 0xffff;
    total[1] = both >> 16;
    value[0] = before & 0xffff;
    value[1] = before >> 16;
  }
  ISTHMUS_DEVICE void clear_string(uint32_t num_bits) const {
    for_each_of_group(*group_, num_bits / 64 + 1, [&](int64_t i) { masks_->string[i] = 0; });
  }

  Group* group_;
  WeightMasks<Format>* masks_;
  int num_words_;
  OwnWords own_;
  uint32_t num_value_bits_ = 0;  // of the levels so far: a sign, or a bit below the highest one
};

}  // namespace isthmus::kernels::ISTHMUS_KERNEL_NAMESPACE
