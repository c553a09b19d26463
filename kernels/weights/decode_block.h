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
      : WeightBlock<Format, Group>(group, masks, num_elements), reader_{words}, position_(begin), end_(end) {}

  // Turns old elements into new ones. False: no encoder makes such a block.
  template <typename Words>
  ISTHMUS_DEVICE bool decode(const Words& words) {
    const auto shift = static_cast<uint32_t>(get(kWeightShiftBits));
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
    uint32_t position = position_ + Base::value_bits_before(num_levels_);
    position_ += num_value_bits_;
    if (position_ > end_ || end_ - position_ >= 16 || reader_.get(position_, static_cast<int>(end_ - position_)) != 0) {
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

  // Behind the end it returns zeros, and position_ is too large.
  ISTHMUS_DEVICE uint64_t get(int count) {
    const uint64_t bits = position_ < end_ ? reader_.get(position_, count) : 0;
    position_ += static_cast<uint32_t>(count);
    return bits;
  }

  ISTHMUS_DEVICE bool decode_class(uint32_t of_class, uint32_t shift) {
    uint32_t own_members = 0;
    int end = Base::keep_class(of_class, shift, [&](uint64_t members, int) { own_members += count_ones(members); });
    uint32_t num_bits = 0;
    uint32_t before = group_->exclusive_sum(own_members, num_bits);
    for (int level = 0; num_bits > 0 && level < Format::kBits; ++level) {
      WeightString string;
      if (num_bits >= WeightString::kShort) {
        string = WeightString::of_head(get(WeightString::kHeadBits));
      }
      const bool is_of_gaps = string.is_of_gaps();
      const uint32_t as_it_is = string.low_bits == WeightString::kAsItIs ? num_bits : 0;
      if (position_ + as_it_is > end_ || (is_of_gaps && !decode_gaps(num_bits, string.low_bits))) {
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
      own_members = is_of_gaps ? read_members(level, end, string, BitReader{masks_->string}, before)
                               : read_members(level, end, string, reader_, position_ + before);
      position_ += as_it_is;
      before = group_->exclusive_sum(own_members, num_bits);
      num_value_bits_ += num_bits;
    }
    return true;
  }

  // Leaves the members that are at the level, up to `end`, and returns how many this thread has of them.
  ISTHMUS_DEVICE uint32_t read_members(int level, int& end, WeightString string, const BitReader& from,
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
      const uint64_t found = spread(from.peek(position, count) ^ inversion, members);
      at_level[word] |= found;
      own_members += count_ones(found);
      position += static_cast<uint32_t>(count);
      Base::keep(found, word, kept);
    }
    end = kept;
    return own_members;
  }

  // Makes the string of which gaps were sent. False: a one is outside of it.
  ISTHMUS_DEVICE bool decode_gaps(uint32_t num_bits, uint32_t low_bits) {
    const auto unary = static_cast<uint32_t>(get(bits_of_length(num_bits)));
    const uint32_t begin = position_;
    position_ += unary;
    if (position_ > end_) {
      return false;
    }
    const OwnWords own(*group_, static_cast<int>((unary + 63) / 64));
    const auto marks_of = [&](int word) {
      const uint32_t left = unary - 64 * static_cast<uint32_t>(word);
      return reader_.get(begin + 64 * static_cast<uint32_t>(word), left < 64 ? static_cast<int>(left) : 64);
    };
    Base::clear_string(num_bits);
    uint32_t own_ones = 0;
    for (int word = own.first; word < own.end; ++word) {
      own_ones += count_ones(marks_of(word));
    }
    uint32_t ones = 0;
    const uint32_t ones_before = group_->exclusive_sum(own_ones, ones);
    const uint32_t lows = position_;
    position_ += ones * low_bits;
    if (position_ > end_) {
      return false;
    }
    const auto low_of = [&](uint32_t one) {
      return static_cast<uint32_t>(reader_.get(lows + one * low_bits, static_cast<int>(low_bits)));
    };
    uint32_t own_lows = 0;
    for (uint32_t one = ones_before; one < ones_before + own_ones && group_->size() > 1; ++one) {
      own_lows += low_of(one);
    }
    uint32_t unused = 0;
    // Where ones are is linear in where their marks are: zeros before a mark count 1 << low_bits each, ones 1.
    uint32_t offset = group_->exclusive_sum(own_lows, unused) + ones_before - (ones_before << low_bits);
    uint32_t one = ones_before;
    bool is_outside = false;
    for (int word = own.first; word < own.end; ++word) {
      for_each_bit(marks_of(word), 0, [&](int place) {
        offset += low_of(one++);
        const uint32_t found = (static_cast<uint32_t>(64 * word + place) << low_bits) + offset;
        offset += 1 - (1U << low_bits);
        if (found < num_bits) {
          group_->fetch_or(masks_->string[found / 64], uint64_t{1} << (found % 64));
        } else {
          is_outside = true;
        }
      });
    }
    return !group_->any(is_outside);
  }

  // Moves the word's elements by distances, of which levels are the highest bits.
  template <typename Words>
  ISTHMUS_DEVICE void decode_values(const Words& words, int word, uint32_t& position) const {
    const auto take = [&](uint64_t mask) {
      const int count = count_ones(mask);
      const uint64_t bits = spread(reader_.peek(position, count), mask);
      position += static_cast<uint32_t>(count);
      return bits;
    };
    uint64_t members = masks_->level[0][word];
    typename Words::Moves moves(words, word, *masks_, members, take(members));
    for (int level = 0; members != 0; ++level) {
      const uint64_t longer = level + 1 < num_levels_ ? masks_->level[level + 1][word] : 0;
      moves.add(level, (members & ~longer) | take(longer));
      members = longer;
    }
    moves.finish();
  }

  BitReader reader_;
  uint32_t position_;
  uint32_t end_;
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
