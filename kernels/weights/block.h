// The block algorithm of weight differences (docs/weights.md): the same on every executor, a template over Group, whose
// threads share the words of a block in order, and over Words, which turns the elements of a word to bits and back
// (words.h; the CPU has its own).
//
// All threads of a group make the same calls. What they return is known to all.
#pragma once

#include <cstdint>

#include "kernels/weights/gaps.h"

namespace isthmus::kernels::ISTHMUS_KERNEL_NAMESPACE {

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
  // Keeps the words that have elements of a class, and returns how many elements this thread has of it.
  ISTHMUS_DEVICE uint32_t keep_class(uint32_t of_class, uint32_t shift, int& end) const {
    uint64_t is_other[kWeightClassBits];
    uint64_t is_left_out[kWeightClassBits];
    ISTHMUS_UNROLL
    for (uint32_t bit = 0; bit < kWeightClassBits; ++bit) {
      is_other[bit] = (of_class << shift >> bit & 1) != 0 ? 0 : ~uint64_t{0};
      is_left_out[bit] = bit < shift ? ~uint64_t{0} : 0;
    }
    for (int word = own_.first; word < own_.end; ++word) {
      uint64_t members = ~uint64_t{0};
      ISTHMUS_UNROLL
      for (uint32_t bit = 0; bit < kWeightClassBits; ++bit) {
        members &= (masks_->exponent[bit][word] ^ is_other[bit]) | is_left_out[bit];
      }
      masks_->members[word] = members;
    }
    uint32_t own_members = 0;
    end = own_.first;
    for (int word = own_.first; word < own_.end; ++word) {
      const uint64_t members = masks_->members[word];
      own_members += count_ones(members);
      keep(members, word, end);
    }
    return own_members;
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

  Group* group_;
  WeightMasks<Format>* masks_;
  int num_words_;
  OwnWords own_;
  uint32_t num_value_bits_ = 0;  // of the levels so far: a sign, or a bit below the highest one
};

}  // namespace isthmus::kernels::ISTHMUS_KERNEL_NAMESPACE
