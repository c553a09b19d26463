// Strings that are sent as gaps between their ones (block.h, docs/weights.md), by any group. The CPU has its own.
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

// Bits of the length of the unary part, at most as long as the string.
ISTHMUS_DEVICE int bits_of_length(uint32_t num_bits) { return highest_one(num_bits) + 1; }

// Sums over the threads before this one, and over all, of two values at once, below 2^16.
template <typename Group>
ISTHMUS_DEVICE void sum_both(Group& group, uint32_t (&value)[2], uint32_t (&total)[2]) {
  uint32_t both = 0;
  const uint32_t before = group.exclusive_sum(value[0] | value[1] << 16, both);
  total[0] = both & 0xffff;
  total[1] = both >> 16;
  value[0] = before & 0xffff;
  value[1] = before >> 16;
}

// Threads that share a string add bits to it, behind a barrier.
template <typename Group>
ISTHMUS_DEVICE void clear_string(Group& group, uint64_t* words, uint32_t num_bits) {
  if (group.size() > 1) {
    clear(group, words, num_bits / 64 + 1);
  }
}

// visit(gap) for each one of the words that this thread has of the string.
template <typename Visit>
ISTHMUS_DEVICE void for_each_gap(const uint64_t* string, OwnWords own, const Visit& visit) {
  int before = -1;
  for (int word = own.first - 1; word >= 0 && before < 0; --word) {
    before = string[word] == 0 ? -1 : 64 * word + highest_one(string[word]);
  }
  for (int word = own.first; word < own.end; ++word) {
    for_each_one(string[word], [&](int place) {
      visit(static_cast<uint32_t>(64 * word + place - before - 1));
      before = 64 * word + place;
    });
  }
}

// Writes the gaps of a string of so many bits. `out` has room for the length and for the string.
template <typename Group>
ISTHMUS_DEVICE void encode_gaps(Group& group, const uint64_t* string, uint32_t num_bits, uint32_t low_bits,
                                BitsOut& out) {
  const OwnWords own(group, static_cast<int>((num_bits + 63) / 64));
  uint32_t before[2] = {0, 0};  // zeros of the unary part, and ones
  const auto count = [&](uint32_t gap) {
    before[0] += gap >> low_bits;
    ++before[1];
  };
  uint32_t total[2];
  for_each_gap(string, own, count);
  sum_both(group, before, total);
  const uint32_t unary = total[0] + total[1];
  const uint32_t ones_before = before[1];
  out.put(group, unary, bits_of_length(num_bits));
  for_each_gap(string, own, [&](uint32_t gap) {
    count(gap);
    const uint32_t mark = out.position + before[0] + before[1] - 1;
    group.fetch_or(out.words[mark / 64], uint64_t{1} << (mark % 64));
  });
  out.position += unary;
  const uint32_t num_lows = total[1] * low_bits;
  if (out.has_room(num_lows)) {
    BitWriter<Group> writer(group, out.words, out.position + ones_before * low_bits);
    for_each_gap(string, own, [&](uint32_t gap) {
      writer.put(gap & lower_bits(static_cast<int>(low_bits)), static_cast<int>(low_bits));
    });
    writer.flush();
  }
  out.position += num_lows;
}

// Makes a string of its gaps. False: it has a one outside, or the gaps end behind their end.
template <typename Group>
ISTHMUS_DEVICE bool decode_gaps(Group& group, BitsIn& in, uint32_t num_bits, uint32_t low_bits, uint64_t* string) {
  const auto unary = static_cast<uint32_t>(in.take(bits_of_length(num_bits)));
  const uint32_t begin = in.position;
  in.position += unary;
  if (unary > num_bits || in.position > in.end) {
    return false;
  }
  clear_string(group, string, num_bits);
  const OwnWords own(group, static_cast<int>((unary + 63) / 64));
  const auto marks_of = [&](int word) {
    const uint32_t left = unary - 64 * static_cast<uint32_t>(word);
    return in.get(begin + 64 * static_cast<uint32_t>(word), left < 64 ? static_cast<int>(left) : 64);
  };
  uint32_t own_ones = 0;
  for (int word = own.first; word < own.end; ++word) {
    own_ones += count_ones(marks_of(word));
  }
  uint32_t ones = 0;
  const uint32_t ones_before = group.exclusive_sum(own_ones, ones);
  const uint32_t lows = in.position;
  in.position += ones * low_bits;
  if (in.position > in.end) {
    return false;
  }
  const auto low_of = [&](uint32_t one) {
    return static_cast<uint32_t>(in.get(lows + one * low_bits, static_cast<int>(low_bits)));
  };
  uint32_t own_lows = 0;
  for (uint32_t one = ones_before; one < ones_before + own_ones; ++one) {
    own_lows += low_of(one);
  }
  uint32_t unused = 0;
  uint32_t sum_of_lows = group.exclusive_sum(own_lows, unused);
  uint32_t one = ones_before;
  bool is_outside = false;
  for (int word = own.first; word < own.end; ++word) {
    for_each_one(marks_of(word), [&](int place) {
      sum_of_lows += low_of(one);
      const uint32_t zeros = 64 * static_cast<uint32_t>(word) + static_cast<uint32_t>(place) - one;
      const uint32_t found = (zeros << low_bits) + sum_of_lows + one;
      is_outside |= found >= num_bits;
      if (found < num_bits) {
        group.fetch_or(string[found / 64], uint64_t{1} << (found % 64));
      }
      ++one;
    });
  }
  return !group.any(is_outside);
}

}  // namespace isthmus::kernels::ISTHMUS_KERNEL_NAMESPACE
