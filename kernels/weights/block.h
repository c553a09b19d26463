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
  // The elements of a class, by word.
  ISTHMUS_DEVICE uint64_t members_of(int word, uint32_t of_class, uint32_t shift) const {
    uint64_t members = ~uint64_t{0};
    ISTHMUS_UNROLL
    for (uint32_t bit = 0; bit < kWeightClassBits; ++bit) {
      const uint64_t is_other = bit < shift || (of_class << shift >> bit & 1) != 0 ? 0 : ~uint64_t{0};
      members &= bit < shift ? ~uint64_t{0} : masks_->exponent[bit][word] ^ is_other;
    }
    return members;
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
    int end = own_.first;
    for (int word = own_.first; word < own_.end; ++word) {
      const uint64_t members = Base::members_of(word, of_class, shift);
      before[0] += count_ones(members);
      before[1] += count_ones(members & masks_->level[0][word]);
      Base::keep(members, word, end);
    }
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
      for_each_one(masks_->string[word], [&](int place) {
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
    int end = own_.first;
    for (int word = own_.first; word < own_.end; ++word) {
      const uint64_t members = Base::members_of(word, of_class, shift);
      own_members += count_ones(members);
      Base::keep(members, word, end);
    }
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
    uint32_t own_members = 0;
    int kept = own_.first;
    for (int place = own_.first; place < end; ++place) {
      // The analyzer cannot know that a thread's words begin at 0 or later.
      const uint64_t members = masks_->members[place];  // NOLINT(clang-analyzer-security.ArrayBound)
      const int word = masks_->places[place];
      const int count = count_ones(members);
      const uint64_t found = spread(from.get(position, count) ^ string.inversion(count), members);
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
    uint32_t sum_of_lows = group_->exclusive_sum(own_lows, unused);
    uint32_t one = ones_before;
    bool is_outside = false;
    for (int word = own.first; word < own.end; ++word) {
      for_each_one(marks_of(word), [&](int place) {
        sum_of_lows += low_of(one);
        const uint32_t zeros = 64 * static_cast<uint32_t>(word) + static_cast<uint32_t>(place) - one;
        const uint32_t found = (zeros << low_bits) + sum_of_lows + one;
        is_outside |= found >= num_bits;
        if (found < num_bits) {
          group_->fetch_or(masks_->string[found / 64], uint64_t{1} << (found % 64));
        }
        ++one;
      });
    }
    return !group_->any(is_outside);
  }

  // Makes bits of distances of the levels, and moves the word's elements.
  template <typename Words>
  ISTHMUS_DEVICE void decode_values(const Words& words, int word, uint32_t& position) const {
    const uint64_t changed = masks_->level[0][word];
    const auto take = [&](uint64_t mask) {
      const int count = count_ones(mask);
      const uint64_t bits = reader_.get(position, count);
      position += static_cast<uint32_t>(count);
      return spread(bits, mask);
    };
    const uint64_t signs = take(changed);
    int num_levels = 0;
    for (int level = 0; level < num_levels_ && masks_->level[level][word] != 0; ++level) {
      const uint64_t longer = level + 1 < num_levels_ ? masks_->level[level + 1][word] : 0;
      masks_->level[level][word] = (masks_->level[level][word] & ~longer) | take(longer);
      ++num_levels;
    }
    words.move(word, *masks_, num_levels, changed, signs);
  }

  BitReader reader_;
  uint32_t position_;
  uint32_t end_;
  int num_levels_ = 0;
};

// The bytes of a block of so many coded bits: 0, of equal elements, even, or those of the elements, if it is not
// shorter.
ISTHMUS_DEVICE int64_t bytes_of_coded(uint32_t num_bits, int64_t raw_bytes) {
  const int64_t bytes = (int64_t{num_bits} + 15) / 16 * 2;
  return bytes < raw_bytes ? bytes : raw_bytes;
}

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
