// Encodes a block of weight differences (block.h, docs/weights.md).
#pragma once

#include <cstdint>

#include "kernels/weights/block.h"

namespace isthmus::kernels::ISTHMUS_KERNEL_NAMESPACE {

template <typename Format, typename Group>
class WeightBlockEncoder : public WeightBlock<Format, Group> {
 public:
  // out: room for most_bits, whole words.
  ISTHMUS_DEVICE WeightBlockEncoder(Group& group, WeightMasks<Format>& masks, int num_elements, uint64_t* out,
                                    uint32_t most_bits)
      : WeightBlock<Format, Group>(group, masks, num_elements), out_(out), most_bits_(most_bits) {}

  // Returns the bits written; 0: the elements are equal; more than most_bits: they do not fit.
  template <typename Words>
  ISTHMUS_DEVICE uint32_t encode(const Words& words) {
    for_each_of_group(*group_, (most_bits_ + 63) / 64, [&](int64_t i) { out_[i] = 0; });
    for (auto& level : masks_->level) {
      for (int word = own_.first; word < own_.end; ++word) {
        level[word] = 0;
      }
    }
    uint32_t own_changed = 0;
    for (int word = own_.first; word < own_.end; ++word) {
      words.split_exponents(word, *masks_);
      words.split_distances(word, *masks_);
      own_changed += count_ones(masks_->level[0][word]);
    }
    uint32_t changed = 0;
    group_->exclusive_sum(own_changed, changed);
    if (changed == 0) {
      return 0;
    }
    const uint32_t shift = class_shift_for(changed, static_cast<uint32_t>(num_words_ * kWeightWordElements));
    put_once(shift, kWeightShiftBits);
    int num_levels = 0;
    for (uint32_t of_class = 0; of_class < 1U << (kWeightClassBits - shift); ++of_class) {
      num_levels = larger(num_levels, encode_class(of_class, shift));
    }
    encode_values(words, num_levels);
    return position_;
  }

 private:
  using Base = WeightBlock<Format, Group>;
  using Base::group_;
  using Base::masks_;
  using Base::num_value_bits_;
  using Base::num_words_;
  using Base::own_;

  static ISTHMUS_DEVICE int larger(int a, int b) { return a > b ? a : b; }

  // Whether so many more bits have room. If not, nothing is written any more.
  ISTHMUS_DEVICE bool has_room(uint32_t num_bits) const { return position_ + num_bits <= most_bits_; }

  ISTHMUS_DEVICE void put_once(uint32_t bits, int count) {
    if (has_room(static_cast<uint32_t>(count)) && group_->thread() == 0) {
      const uint64_t above = uint64_t{bits} >> 1 >> (63 - position_ % 64);
      group_->fetch_or(out_[position_ / 64], uint64_t{bits} << (position_ % 64));
      if (above != 0) {
        group_->fetch_or(out_[position_ / 64 + 1], above);
      }
    }
    position_ += static_cast<uint32_t>(count);
  }

  // Returns how many levels have elements.
  ISTHMUS_DEVICE int encode_class(uint32_t of_class, uint32_t shift) {
    uint32_t before[2] = {0, 0};  // members, and those at the level, of this thread, then of threads before it
    int end = Base::keep_class(of_class, shift, [&](uint64_t members, int word) {
      before[0] += count_ones(members);
      before[1] += count_ones(members & masks_->level[0][word]);
    });
    for (int level = 0; level < Format::kBits; ++level) {
      const uint32_t own_ones = before[1];
      uint32_t total[2];
      Base::sum_both(before, total);
      const uint32_t own_next = encode_string(level, end, total[0], total[1], before[0]);
      num_value_bits_ += total[1];
      if (total[1] == 0) {
        return level;
      }
      before[0] = own_ones;
      before[1] = own_next;
    }
    return Format::kBits;
  }

  // Whether the members are at the level. before: members of the threads before this one. Leaves those that are, up to
  // `end`, and returns how many of these this thread has at the next level.
  ISTHMUS_DEVICE uint32_t encode_string(int level, int& end, uint32_t num_bits, uint32_t num_ones, uint32_t before) {
    WeightString string;
    if (num_bits >= WeightString::kShort) {
      string = WeightString::best_for(num_bits, num_ones);
      put_once(string.head(), WeightString::kHeadBits);
    }
    if (num_bits == 0 || num_ones == 0) {
      position_ += num_bits < WeightString::kShort ? num_bits : 0;
      return 0;
    }
    if (string.is_of_gaps()) {
      Base::clear_string(num_bits);
      group_->sync();
      const uint32_t own_next = write_members<true>(level, end, string, masks_->string, before);
      group_->sync();
      encode_gaps(num_bits, string.low_bits);
      return own_next;
    }
    const bool writes = string.low_bits == WeightString::kAsItIs && has_room(num_bits);
    const uint32_t position = position_;
    position_ += string.low_bits == WeightString::kAsItIs ? num_bits : 0;
    return writes ? write_members<true>(level, end, string, out_, position + before)
                  : write_members<false>(level, end, string, out_, 0);
  }

  template <bool kWrites>
  ISTHMUS_DEVICE uint32_t write_members(int level, int& end, WeightString string, uint64_t* to,
                                        uint32_t position) const {
    BitWriter<Group> writer(*group_, to, position);
    const uint64_t* at_level = masks_->level[level];
    const uint64_t* at_next = masks_->level[level + 1 < Format::kBits ? level + 1 : level];
    const uint64_t has_next = level + 1 < Format::kBits ? ~uint64_t{0} : 0;
    uint32_t own_next = 0;
    int kept = own_.first;
    for (int place = own_.first; place < end; ++place) {
      const uint64_t members = masks_->members[place];
      const int word = masks_->places[place];
      const uint64_t found = members & at_level[word];
      if (kWrites) {
        const int count = count_ones(members);
        writer.put(gathered(found, members) ^ string.inversion(count), count);
      }
      own_next += count_ones(found & at_next[word] & has_next);
      Base::keep(found, word, kept);
    }
    if (kWrites) {
      writer.flush();
    }
    end = kept;
    return own_next;
  }

  // visit(gap) for each one of the words that this thread has of the string.
  template <typename Visit>
  ISTHMUS_DEVICE void for_each_gap(OwnWords own, const Visit& visit) const {
    int before = -1;
    for (int word = own.first - 1; word >= 0 && before < 0; --word) {
      before = masks_->string[word] == 0 ? -1 : 64 * word + highest_one(masks_->string[word]);
    }
    for (int word = own.first; word < own.end; ++word) {
      for_each_bit(masks_->string[word], 0, [&](int place) {
        visit(static_cast<uint32_t>(64 * word + place - before - 1));
        before = 64 * word + place;
      });
    }
  }

  // The unary part is at most as long as the string.
  ISTHMUS_DEVICE void encode_gaps(uint32_t num_bits, uint32_t low_bits) {
    const uint32_t length = position_;
    position_ += static_cast<uint32_t>(bits_of_length(num_bits));
    if (!has_room(num_bits)) {
      position_ = most_bits_ + 1;
      return;
    }
    const OwnWords own(*group_, static_cast<int>((num_bits + 63) / 64));
    uint32_t before[2] = {0, 0};  // zeros of the unary part, and ones
    const auto count = [&](uint32_t gap) {
      before[0] += gap >> low_bits;
      ++before[1];
    };
    uint32_t total[2];
    if (group_->size() > 1) {
      for_each_gap(own, count);
      Base::sum_both(before, total);
    }
    const uint32_t ones_before = before[1];
    for_each_gap(own, [&](uint32_t gap) {
      count(gap);
      const uint32_t mark = position_ + before[0] + before[1] - 1;
      group_->fetch_or(out_[mark / 64], uint64_t{1} << (mark % 64));
    });
    if (group_->size() == 1) {
      Base::sum_both(before, total);
    }
    const uint32_t unary = total[0] + total[1];
    const uint32_t lows = position_ + unary;
    position_ = length;
    put_once(unary, bits_of_length(num_bits));
    position_ = lows + total[1] * low_bits;
    if (position_ <= most_bits_) {
      BitWriter<Group> writer(*group_, out_, lows + ones_before * low_bits);
      for_each_gap(own, [&](uint32_t gap) {
        writer.put(gap & lower_bits(static_cast<int>(low_bits)), static_cast<int>(low_bits));
      });
      writer.flush();
    }
  }

  // Of each word signs of what moved, and the lower bits of distances, below their highest ones.
  template <typename Words>
  ISTHMUS_DEVICE void encode_values(const Words& words, int num_levels) {
    const uint32_t before = Base::value_bits_before(num_levels);
    if (has_room(num_value_bits_)) {
      BitWriter<Group> writer(*group_, out_, position_ + before);
      for (int word = own_.first; word < own_.end; ++word) {
        const uint64_t changed = masks_->level[0][word];
        if (changed == 0) {
          continue;
        }
        const typename Words::Values values = words.values(word, changed);
        writer.put(values.signs(changed), count_ones(changed));
        for (int level = 1; level < num_levels && masks_->level[level][word] != 0; ++level) {
          const uint64_t longer = masks_->level[level][word];
          writer.put(values.bits(level - 1, longer), count_ones(longer));
        }
      }
      writer.flush();
    }
    position_ += num_value_bits_;
  }

  uint64_t* out_;
  uint32_t most_bits_;
  uint32_t position_ = 0;
};

// The bytes of a block of so many coded bits: 0, of equal elements, even, or those of the elements, if it is not
// shorter.
ISTHMUS_DEVICE int64_t bytes_of_coded(uint32_t num_bits, int64_t raw_bytes) {
  const int64_t bytes = (int64_t{num_bits} + 15) / 16 * 2;
  return bytes < raw_bytes ? bytes : raw_bytes;
}

}  // namespace isthmus::kernels::ISTHMUS_KERNEL_NAMESPACE
