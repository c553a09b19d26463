// Decodes a block of weight differences (block.h, docs/weights.md).
#pragma once

#include <cstdint>

#include "kernels/weights/block.h"

namespace isthmus::kernels::ISTHMUS_KERNEL_NAMESPACE {

template <typename Format, typename Group>
class WeightBlockDecoder : public WeightBlock<Format, Group> {
 public:
  // The block is at bits `begin` to `end` of these words, and one word more may be read.
  ISTHMUS_DEVICE WeightBlockDecoder(Group& group, WeightMasks<Format>& masks, int num_elements, const uint64_t* words,
                                    uint32_t begin, uint32_t end)
      : WeightBlock<Format, Group>(group, masks, num_elements), in_{words, end, begin} {}

  // Turns old elements into new ones. False: no encoder makes such a block.
  template <typename Words>
  ISTHMUS_DEVICE bool decode(const Words& words) {
    const auto shift = static_cast<uint32_t>(in_.take(kWeightShiftBits));
    if (shift > 2) {
      return false;
    }
    for (int word = own_.first; word < own_.end; ++word) {
      words.split_exponents(word, *masks_);
    }
    for (uint32_t of_class = 0; of_class < 1U << (kWeightClassBits - shift); ++of_class) {
      if (!decode_class(of_class, shift)) {
        return false;
      }
    }
    uint32_t position = in_.position + Base::value_bits_before(num_levels_);
    in_.position += num_value_bits_;
    if (in_.position > in_.end || in_.end - in_.position >= 16 ||
        in_.get(in_.position, static_cast<int>(in_.end - in_.position)) != 0) {
      return false;
    }
    for (int word = own_.first; word < own_.end; ++word) {
      if (masks_->level[0][word] != 0 && num_levels_ > 0) {
        decode_values(words, word, position);
      }
    }
    return true;
  }

 private:
  using Base = WeightBlock<Format, Group>;
  using Base::group_;
  using Base::masks_;
  using Base::num_value_bits_;
  using Base::own_;

  ISTHMUS_DEVICE bool decode_class(uint32_t of_class, uint32_t shift) {
    int end = 0;
    uint32_t own_members = Base::keep_class(of_class, shift, end);
    uint32_t num_bits = 0;
    uint32_t before = group_->exclusive_sum(own_members, num_bits);
    for (int level = 0; num_bits > 0 && level < Format::kBits; ++level) {
      WeightString string;
      if (num_bits >= WeightString::kShort) {
        string = WeightString::of_head(in_.take(WeightString::kHeadBits));
      }
      const bool is_of_gaps = string.is_of_gaps();
      const uint32_t as_it_is = string.low_bits == WeightString::kAsItIs ? num_bits : 0;
      if (in_.position + as_it_is > in_.end ||
          (is_of_gaps && !decode_gaps(*group_, in_, num_bits, string.low_bits, masks_->string))) {
        return false;
      }
      if (string.low_bits == WeightString::kNone && !string.is_inverted) {
        return true;
      }
      if (level == num_levels_) {
        ++num_levels_;
        for (int word = own_.first; word < own_.end; ++word) {
          masks_->level[level][word] = 0;
        }
      }
      if (string.low_bits == WeightString::kNone) {
        for (int place = own_.first; place < end; ++place) {
          masks_->level[level][masks_->places[place]] |= masks_->members[place];
        }
        num_value_bits_ += num_bits;
        continue;
      }
      own_members = is_of_gaps ? read_members(level, end, string, {masks_->string, num_bits}, before)
                               : read_members(level, end, string, in_, in_.position + before);
      in_.position += as_it_is;
      before = group_->exclusive_sum(own_members, num_bits);
      num_value_bits_ += num_bits;
    }
    return true;
  }

  // Leaves the members that are at the level, up to `end`, and returns how many this thread has of them.
  ISTHMUS_DEVICE uint32_t read_members(int level, int& end, WeightString string, const BitsIn& in,
                                       uint32_t position) const {
    uint64_t* at_level = masks_->level[level];
    const uint64_t inversion = string.inversion(64);
    uint32_t own_members = 0;
    int kept = own_.first;
    for (int place = own_.first; place < end; ++place) {
      // The analyzer cannot know that a thread's words begin at 0 or later.
      const uint64_t members = masks_->members[place];  // NOLINT(clang-analyzer-security.ArrayBound)
      const int word = masks_->places[place];
      const int count = count_ones(members);
      const uint64_t found = spread(in.from(position) ^ inversion, members);
      at_level[word] |= found;
      own_members += count_ones(found);
      position += static_cast<uint32_t>(count);
      Base::keep(found, word, kept);
    }
    end = kept;
    return own_members;
  }

  // Makes bits of distances of the levels, and moves the word's elements.
  template <typename Words>
  ISTHMUS_DEVICE void decode_values(const Words& words, int word, uint32_t& position) const {
    const uint64_t changed = masks_->level[0][word];
    const auto take = [&](uint64_t mask) {
      const uint64_t bits = spread(in_.from(position), mask);
      position += static_cast<uint32_t>(count_ones(mask));
      return bits;
    };
    const uint64_t signs = take(changed);
    int num_levels = 0;
    for (int level = 0; level < num_levels_ && masks_->level[level][word] != 0; ++level) {
      const uint64_t longer = level + 1 < num_levels_ ? masks_->level[level + 1][word] : 0;
      masks_->level[level][word] = (masks_->level[level][word] & ~longer) | take(longer);
      ++num_levels;
    }
    words.move(word, *masks_, num_levels, signs);
  }

  BitsIn in_;
  int num_levels_ = 0;
};

// A decoder of a coded block at an even address; the words that it lies in, and the next, may be read.
template <typename Format, typename Group>
ISTHMUS_DEVICE WeightBlockDecoder<Format, Group> decoder_of_block(Group& group, WeightMasks<Format>& masks,
                                                                  int num_elements, const void* block, int64_t bytes) {
  const auto address = reinterpret_cast<uintptr_t>(block);
  const auto begin = static_cast<uint32_t>(address % sizeof(uint64_t) * 8);
  const auto* words =
      reinterpret_cast<const uint64_t*>(static_cast<const uint8_t*>(block) - address % sizeof(uint64_t));
  return {group, masks, num_elements, words, begin, begin + static_cast<uint32_t>(8 * bytes)};
}

}  // namespace isthmus::kernels::ISTHMUS_KERNEL_NAMESPACE
