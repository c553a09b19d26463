// The exact threshold of codec `tagc` on many groups: which elements of piece + residual are sent, as an index.
//
// A sample gives a bound that a few more than `keep` magnitudes probably reach. One pass over piece and residual adds
// them up, marks what reaches the bound, and counts the first digits of what it marked; from then on only marked
// elements are looked at. Two passes count the digits that follow, one takes out of the index what lies below the
// threshold. Of elements that equal it the first stay: where there are too many, two passes more count them by blocks
// and cut. A bound that was too high is seen by all groups, and a pass that otherwise does nothing marks everything.
#pragma once

#include "kernels/passes.h"
#include "kernels/tagc_block.h"
#include "kernels/tagc_digits.h"
#include "kernels/tagc_job.h"

namespace isthmus::kernels::ISTHMUS_KERNEL_NAMESPACE {

// visit(word, bits) for each word of the index in a block without a flag: one thread a word.
template <typename Group, typename Visit>
ISTHMUS_DEVICE void for_each_index_word(const Group& group, const TagcEncodeJob& job, Visit visit) {
  const auto* flags = reinterpret_cast<const uint64_t*>(job.packet + job.layout.flags);
  auto* index = reinterpret_cast<uint32_t*>(job.packet + job.layout.index);
  const int64_t words = job.shape.block_elements / 32;
  for_each_of_all(group, job.shape.num_blocks * words, [&](int64_t word) {
    if (!is_flagged(flags, word / words)) {
      visit(word, index[word]);
    }
  });
}

// Where the bound was too high: marks all but zeros. Elsewhere it does nothing.
struct MarkAll {
  static constexpr int kThreads = kPassThreads;
  struct Shared {
    uint32_t counts[kMaxDigitValues];
  };
  static constexpr int64_t kMaxSharedBytes = sizeof(Shared);

  TagcEncodeJob job;

  template <typename Group>
  ISTHMUS_DEVICE void operator()(Group& group) const {
    if (!bound_misled(job)) {
      return;
    }
    auto& shared = group.template shared<Shared>();
    auto* index = reinterpret_cast<uint32_t*>(job.packet + job.layout.index);
    clear(group, shared.counts, kMaxDigitValues);
    group.sync();
    for_each_index_word(group, job, [&](int64_t word, uint32_t) {
      uint32_t marks = 0;
      for (int64_t i = 32 * word; i < 32 * word + 32 && i < job.shape.num_elements; ++i) {
        const uint32_t bits = magnitude(job.residual[i]);
        if (bits != 0) {
          marks |= 1U << (i % 32);
          group.fetch_add(shared.counts[digit_of(bits, 0)], 1U);
        }
      }
      index[word] = marks;
    });
    group.sync();
    add_counts(group, shared.counts, job.state->counts_of_all);
  }
};

// Counts the next digit of the marked elements that begin as the threshold does.
struct CountDigit {
  static constexpr int kThreads = kPassThreads;
  struct Shared {
    uint32_t counts[kMaxDigitValues];
    DigitChoice choice;
  };
  static constexpr int64_t kMaxSharedBytes = sizeof(Shared);

  TagcEncodeJob job;
  int digit;  // 1 or more

  template <typename Group>
  ISTHMUS_DEVICE void operator()(Group& group) const {
    auto& shared = group.template shared<Shared>();
    clear(group, shared.counts, kMaxDigitValues);
    const PartialThreshold threshold = threshold_so_far(group, job, digit, shared.choice);
    if (!threshold.found) {
      return;
    }
    for_each_index_word(group, job, [&](int64_t word, uint32_t marks) {
      for_each_bit(marks, 32 * word, [&](int64_t i) {
        const uint32_t bits = magnitude(job.residual[i]);
        if ((bits ^ threshold.prefix) >> digit_shift(digit - 1) == 0) {
          group.fetch_add(shared.counts[digit_of(bits, digit)], 1U);
        }
      });
    });
    group.sync();
    add_counts(group, shared.counts, job.state->counts[digit]);
  }
};

// Leaves in the index what is not below the threshold, and counts what equals it, by blocks.
struct ApplyThreshold {
  static constexpr int kThreads = kPassThreads;
  static constexpr int64_t kMaxSharedBytes = sizeof(DigitChoice);

  TagcEncodeJob job;

  template <typename Group>
  ISTHMUS_DEVICE void operator()(Group& group) const {
    auto& choice = group.template shared<DigitChoice>();
    const PartialThreshold threshold = threshold_so_far(group, job, kNumDigits, choice);
    if (!threshold.found) {
      return;
    }
    auto* index = reinterpret_cast<uint32_t*>(job.packet + job.layout.index);
    const int64_t words = job.shape.block_elements / 32;
    for_each_index_word(group, job, [&](int64_t word, uint32_t marks) {
      uint32_t kept = 0;
      uint32_t equal = 0;
      for_each_bit(marks, 0, [&](int64_t i) {
        const uint32_t bits = magnitude(job.residual[32 * word + i]);
        kept |= (bits >= threshold.prefix ? 1U : 0U) << i;
        equal += bits == threshold.prefix ? 1 : 0;
      });
      index[word] = kept;
      if (equal != 0) {
        group.fetch_add(job.tie_counts[word / words], equal);
      }
    });
  }
};

// Whether more elements equal the threshold than may stay.
ISTHMUS_DEVICE bool has_spare_ties(const TagcEncodeJob& job, const PartialThreshold& threshold) {
  return threshold.found &&
         job.state->counts[kNumDigits - 1][digit_of(threshold.prefix, kNumDigits - 1)] > threshold.wanted;
}

// How many ties are in the blocks before each. One group.
struct SumTies {
  static constexpr int kThreads = 1024;
  static constexpr int64_t kMaxSharedBytes = sizeof(DigitChoice);

  TagcEncodeJob job;

  template <typename Group>
  ISTHMUS_DEVICE void operator()(Group& group) const {
    auto& choice = group.template shared<DigitChoice>();
    if (!has_spare_ties(job, threshold_so_far(group, job, kNumDigits, choice))) {
      return;
    }
    uint32_t before = 0;
    for (int64_t base = 0; base < job.shape.num_blocks; base += group.size()) {
      const int64_t block = base + group.thread();
      const bool exists = block < job.shape.num_blocks;
      uint32_t total = 0;
      const uint32_t offset = before + group.exclusive_sum(exists ? job.tie_counts[block] : 0, total);
      if (exists) {
        job.tie_offsets[block] = offset;
      }
      before += total;
    }
  }
};

// Takes out of the index all ties but the first.
struct CutTies {
  static constexpr int kThreads = 128;  // a block has no more words
  static constexpr int64_t kMaxSharedBytes = sizeof(DigitChoice);

  TagcEncodeJob job;

  template <typename Group>
  ISTHMUS_DEVICE void operator()(Group& group) const {
    auto& choice = group.template shared<DigitChoice>();
    const PartialThreshold threshold = threshold_so_far(group, job, kNumDigits, choice);
    if (!has_spare_ties(job, threshold)) {
      return;
    }
    for_each_by_group(group, job.shape.num_blocks, [&](int64_t block) {
      const uint32_t offset = job.tie_offsets[block];
      const uint32_t may_stay = threshold.wanted > offset ? threshold.wanted - offset : 0;
      if (job.tie_counts[block] > may_stay) {
        cut_block(group, block, threshold.prefix, may_stay);
      }
    });
  }

 private:
  template <typename Group>
  ISTHMUS_DEVICE void cut_block(Group& group, int64_t block, uint32_t threshold_bits, uint32_t may_stay) const {
    const int64_t words = job.shape.block_elements / 32;
    uint32_t* index = reinterpret_cast<uint32_t*>(job.packet + job.layout.index) + block * words;
    const float* residual = job.residual + block * job.shape.block_elements;
    uint32_t before = 0;
    for (int64_t base = 0; base < words; base += group.size()) {
      const int64_t w = base + group.thread();
      uint32_t ties = 0;
      uint32_t num_ties = 0;
      for_each_bit(w < words ? index[w] : 0U, 0, [&](int64_t i) {
        const bool equal = magnitude(residual[32 * w + i]) == threshold_bits;
        ties |= (equal ? 1U : 0U) << i;
        num_ties += equal ? 1 : 0;
      });
      uint32_t total = 0;
      const uint32_t offset = before + group.exclusive_sum(num_ties, total);
      if (ties != 0) {
        const int64_t stay = may_stay > offset ? may_stay - offset : 0;
        index[w] &= ~ties | first_bits(ties, stay);
      }
      before += total;
    }
  }
};

}  // namespace isthmus::kernels::ISTHMUS_KERNEL_NAMESPACE
