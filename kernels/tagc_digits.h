// The threshold of codec `tagc`, found digit by digit, from the top of the magnitudes' 31 bits.
#pragma once

#include "kernels/passes.h"
#include "kernels/tagc_job.h"

namespace isthmus::kernels::ISTHMUS_KERNEL_NAMESPACE {

ISTHMUS_DEVICE int digit_shift(int digit) { return 20 - 10 * digit; }  // 11 bits, 10 bits, 10 bits
ISTHMUS_DEVICE uint32_t digit_values(int digit) { return digit == 0 ? kMaxDigitValues : 1024; }
ISTHMUS_DEVICE uint32_t digit_of(uint32_t bits, int digit) {
  return bits >> digit_shift(digit) & (digit_values(digit) - 1);
}

// The digit that the threshold has, if `wanted` of the counted are to stay.
struct DigitChoice {
  uint32_t digit;
  uint32_t wanted;  // of those with this digit
  bool found;       // false: no more than `wanted` were counted, or fewer
};

// The highest digit that, with those above it, at least `wanted` (1 or more) have. choice: memory of the group.
template <typename Group>
ISTHMUS_DEVICE DigitChoice choose_digit(Group& group, const uint32_t* counts, uint32_t values, uint32_t wanted,
                                        DigitChoice& choice) {
  // Each thread has a run of digits, the first thread the highest.
  const uint32_t size = static_cast<uint32_t>(group.size());
  const uint32_t run = (values + size - 1) / size;
  const uint32_t skipped = static_cast<uint32_t>(group.thread()) * run;
  const uint32_t end = values > skipped ? values - skipped : 0;
  const uint32_t begin = end > run ? end - run : 0;
  uint32_t counted = 0;
  for (uint32_t digit = begin; digit < end; ++digit) {
    counted += counts[digit];
  }
  uint32_t total = 0;
  uint32_t above = group.exclusive_sum(counted, total);
  if (total < wanted) {
    return {0, 0, false};
  }
  if (above < wanted && wanted <= above + counted) {  // true for one thread
    uint32_t digit = end - 1;
    for (; above + counts[digit] < wanted; --digit) {
      above += counts[digit];
    }
    choice = {digit, wanted - above, true};
  }
  group.sync();
  return choice;
}

// What is known of the threshold once its first digits are: `prefix`, and how many elements that begin with it stay.
struct PartialThreshold {
  uint32_t prefix;
  uint32_t wanted;
  bool found;  // false: everything that was counted stays
};

// counts_of(digit): how many elements that begin with the threshold's digits so far have which next one.
template <typename Group, typename CountsOf>
ISTHMUS_DEVICE PartialThreshold choose_digits(Group& group, int num_digits, uint32_t keep, CountsOf counts_of,
                                              DigitChoice& choice) {
  PartialThreshold threshold = {0, keep, true};
  for (int digit = 0; digit < num_digits && threshold.found; ++digit) {
    const DigitChoice chosen = choose_digit(group, counts_of(digit), digit_values(digit), threshold.wanted, choice);
    threshold = {threshold.prefix | chosen.digit << digit_shift(digit), chosen.wanted, chosen.found};
  }
  return threshold;
}

// Too few reached the bound.
ISTHMUS_DEVICE bool bound_misled(const TagcEncodeJob& job) {
  return job.state->bound > 1 && job.state->candidates < job.keep;
}

template <typename Group>
ISTHMUS_DEVICE PartialThreshold threshold_so_far(Group& group, const TagcEncodeJob& job, int num_digits,
                                                 DigitChoice& choice) {
  const uint32_t* first = bound_misled(job) ? job.state->counts_of_all : job.state->counts[0];
  return choose_digits(
      group, num_digits, job.keep, [&](int digit) { return digit == 0 ? first : job.state->counts[digit]; }, choice);
}

// Adds a group's counts to those of all groups. They must be complete.
template <typename Group>
ISTHMUS_DEVICE void add_counts(Group& group, const uint32_t* counts, uint32_t* counts_of_all_groups) {
  for_each_of_group(group, kMaxDigitValues, [&](int64_t digit) {
    if (counts[digit] != 0) {
      group.fetch_add(counts_of_all_groups[digit], counts[digit]);
    }
  });
}

}  // namespace isthmus::kernels::ISTHMUS_KERNEL_NAMESPACE
