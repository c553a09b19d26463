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
      : WeightBlock<Format, Group>(group, masks, num_elements), out_{out, most_bits} {}

  // Returns the bits written; 0: the elements are equal; more than most_bits: they do not fit.
  template <typename Words>
  ISTHMUS_DEVICE uint32_t encode(const Words& words) {
    clear_string(*group_, out_.words, out_.most - 1);
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
    out_.put(*group_, shift, kWeightShiftBits);
    int num_levels = 0;
    for (uint32_t of_class = 0; of_class < 1U << (kWeightClassBits - shift); ++of_class) {
      num_levels = larger(num_levels, encode_class(of_class, shift));
    }
    encode_values(words, num_levels);
    return out_.position;
  }

 private:
  using Base = WeightBlock<Format, Group>;
  using Base::group_;
  using Base::masks_;
  using Base::num_value_bits_;
  using Base::num_words_;
  using Base::own_;

  static ISTHMUS_DEVICE int larger(int a, int b) { return a > b ? a : b; }

  // Returns how many levels have elements.
  ISTHMUS_DEVICE int encode_class(uint32_t of_class, uint32_t shift) {
    int end = 0;
    // Members, and those at the level, of this thread, then of threads before it.
    uint32_t before[2] = {Base::keep_class(of_class, shift, end), 0};
    for (int place = own_.first; place < end; ++place) {
      before[1] += count_ones(masks_->members[place] & masks_->level[0][masks_->places[place]]);
    }
    for (int level = 0; level < Format::kBits; ++level) {
      const uint32_t own_ones = before[1];
      uint32_t total[2];
      sum_both(*group_, before, total);
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
      out_.put(*group_, string.head(), WeightString::kHeadBits);
    }
    if (num_bits == 0 || num_ones == 0) {
      out_.put(*group_, 0, num_bits < WeightString::kShort ? static_cast<int>(num_bits) : 0);
      return 0;
    }
    const bool is_of_gaps = string.is_of_gaps();
    const uint32_t as_it_is = string.low_bits == WeightString::kAsItIs ? num_bits : 0;
    const bool goes_out = as_it_is > 0 && out_.has_room(num_bits);
    if (is_of_gaps) {
      clear_string(*group_, masks_->string, num_bits);
      group_->sync();
    }
    // What is not sent is written all the same, where nobody reads it.
    const uint32_t own_next = write_members(level, end, string, goes_out ? out_.words : masks_->string,
                                            goes_out ? out_.position + before : before);
    out_.position += as_it_is;
    if (is_of_gaps) {
      group_->sync();
      if (out_.has_room(static_cast<uint32_t>(bits_of_length(num_bits)) + num_bits)) {
        encode_gaps(*group_, masks_->string, num_bits, string.low_bits, out_);
      } else {
        out_.position = out_.most + 1;
      }
    }
    return own_next;
  }

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
      const int count = count_ones(members);
      writer.put(gathered(found, members) ^ string.inversion(count), count);
      own_next += count_ones(found & at_next[word] & has_next);
      Base::keep(found, word, kept);
    }
    writer.flush();
    end = kept;
    return own_next;
  }

  // Of each word signs of what moved, and the lower bits of distances, below their highest ones.
  template <typename Words>
  ISTHMUS_DEVICE void encode_values(const Words& words, int num_levels) {
    const uint32_t before = Base::value_bits_before(num_levels);
    if (out_.has_room(num_value_bits_)) {
      BitWriter<Group> writer(*group_, out_.words, out_.position + before);
      for (int word = own_.first; word < own_.end; ++word) {
        const uint64_t changed = masks_->level[0][word];
        if (changed == 0) {
          continue;
        }
        const typename Words::Values values = words.values(word);
        writer.put(values.signs(changed), count_ones(changed));
        for (int level = 1; level < num_levels && masks_->level[level][word] != 0; ++level) {
          const uint64_t longer = masks_->level[level][word];
          writer.put(values.bits(level - 1, longer), count_ones(longer));
        }
      }
      writer.flush();
    }
    out_.position += num_value_bits_;
  }

  BitsOut out_;
};

// The bytes of a block of so many coded bits: 0, of equal elements, even, or those of the elements, if it is not
// shorter.
ISTHMUS_DEVICE int64_t bytes_of_coded(uint32_t num_bits, int64_t raw_bytes) {
  const int64_t bytes = (int64_t{num_bits} + 15) / 16 * 2;
  return bytes < raw_bytes ? bytes : raw_bytes;
}

}  // namespace isthmus::kernels::ISTHMUS_KERNEL_NAMESPACE
