// The threshold of codec `tagc`, found digit by digit, from the top of the magnitudes' 31 bits.
#pragma once

#include "kernels/block/passes.h"
#include "kernels/tagc/job.h"

namespace isthmus::kernels::ISTHMUS_KERNEL_NAMESPACE {

ISTHMUS_DEVICE int digit_shift(int digit) { return 20 - 10 * digit; }  // 11 bits, 10 bits, 10 bits
ISTHMUS_DEVICE uint32_t digit_values(int digit) { return digit == 0 ? kMaxDigitValues : 1024; }
ISTHMUS_DEVICE uint32_t digit_of(uint32_t bits, int digit) {
  return bits >> digit_shift(digit) & (digit_values(digit) - 1);
}

// Whether a magnitude has the threshold's digits before this one.
ISTHMUS_DEVICE bool begins_alike(uint32_t bits, const PartialThreshold& threshold, int digit) {
  return digit == 0 || (bits ^ threshold.prefix) >> digit_shift(digit - 1) == 0;
}

// The threshold's digit, if `wanted` of the counted elements are to stay.
struct DigitChoice {
  uint32_t digit;
  uint32_t wanted;  // how many elements with this digit stay
  bool found;       // false: no more than `wanted` were counted, or fewer
};

// The highest digit below `values` such that at least `wanted` (1 or more) elements have it or a higher one, by
// count_of(digit). choice: memory of the group.
template <typename Group, typename CountOf>
ISTHMUS_DEVICE DigitChoice choose_digit(Group& group, uint32_t values, uint32_t wanted, CountOf count_of,
                                        DigitChoice& choice) {
  // Each thread takes a run of digits; the first thread takes the highest.
  const auto size = static_cast<uint32_t>(group.size());
  const uint32_t run = (values + size - 1) / size;
  const uint32_t skipped = static_cast<uint32_t>(group.thread()) * run;
  const uint32_t end = values > skipped ? values - skipped : 0;
  const uint32_t begin = end > run ? end - run : 0;
  uint32_t counted = 0;
  for (uint32_t digit = begin; digit < end; ++digit) {
    counted += count_of(digit);
  }
  uint32_t total = 0;
  uint32_t above = group.exclusive_sum(counted, total);
  if (total < wanted) {
    return {0, 0, false};
  }
  if (above < wanted && wanted <= above + counted) {  // true for one thread
    uint32_t digit = end - 1;
    for (; above + count_of(digit) < wanted; --digit) {
      above += count_of(digit);
    }
    choice = {digit, wanted - above, true};
  }
  group.sync();
  const DigitChoice chosen = choice;
  group.sync();  // before the next call writes
  return chosen;
}

// Adds a digit, chosen by `counts`, to the threshold. All threads of a group call it.
template <typename Group>
ISTHMUS_DEVICE PartialThreshold add_digit(Group& group, const PartialThreshold& threshold, int digit,
                                          const uint32_t* counts, DigitChoice& choice) {
  const DigitChoice chosen = choose_digit(
      group, digit_values(digit), threshold.wanted, [=](uint32_t value) { return counts[value]; }, choice);
  return {threshold.prefix | chosen.digit << digit_shift(digit), chosen.wanted, chosen.found ? 1U : 0U};
}

// Adds a group's complete counts to those of all groups.
template <typename Group>
ISTHMUS_DEVICE void add_counts(Group& group, const uint32_t* counts, uint32_t* counts_of_all_groups) {
  for_each_of_group(group, kMaxDigitValues, [&](int64_t digit) {
    if (counts[digit] != 0) {
      group.fetch_add(counts_of_all_groups[digit], counts[digit]);
    }
  });
}

// Ends a pass that counted a digit: its last group writes the threshold with that digit.
template <typename Group>
ISTHMUS_DEVICE void finish_digit(Group& group, const TagcEncodeJob& job, const PartialThreshold& threshold, int digit,
                                 DigitChoice& choice) {
  const uint32_t* counts = job.state->counts[digit];
  const PartialThreshold longer = add_digit(group, threshold, digit, counts, choice);
  if (group.thread() == 0) {
    job.state->threshold = longer;
    const bool is_whole = digit == kNumDigits - 1 && longer.found != 0;
    job.state->spare_ties = is_whole && counts[digit_of(longer.prefix, digit)] > longer.wanted ? 1 : 0;
  }
}

}  // namespace isthmus::kernels::ISTHMUS_KERNEL_NAMESPACE
