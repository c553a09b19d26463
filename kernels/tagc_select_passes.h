// The exact threshold of codec `tagc` on many groups: which elements of piece + residual are sent, as an index.
//
// A sample gives a bound that a few more than `keep` magnitudes probably reach. One pass over piece and residual adds
// them up, marks what reaches the bound, and counts the first digits of what it marked; from then on only marked
// elements are looked at. Two passes count the digits that follow, one takes out of the index what lies below the
// threshold. Of elements that equal it the first stay: where there are too many, two passes more count them by blocks
// and cut. A bound that was too high is seen by all groups, and a pass that otherwise does nothing marks everything.
#pragma once

#include "kernels/float_types.h"
#include "kernels/passes.h"
#include "kernels/tagc_block.h"
#include "kernels/tagc_job.h"

namespace isthmus::kernels::ISTHMUS_KERNEL_NAMESPACE {

ISTHMUS_DEVICE uint64_t seed_of(const DeviceContext& context) {
  constexpr uint64_t kOdd = 0xd1342543de82ef95;
  return context.unit_hash ^ (context.step + 1) * kOdd;
}

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

// Adds a group's counts to those of all groups. They must be complete.
template <typename Group>
ISTHMUS_DEVICE void add_counts(Group& group, const uint32_t* counts, uint32_t* counts_of_all_groups) {
  for_each_of_group(group, kMaxDigitValues, [&](int64_t digit) {
    if (counts[digit] != 0) {
      group.fetch_add(counts_of_all_groups[digit], counts[digit]);
    }
  });
}

// Guesses the bound from runs of 16 neighbours, each from one of equal stretches, at a place that varies so that no
// period of the data is met. One group. The guess decides speed, never the result.
template <typename Piece>
struct SampleBound {
  static constexpr int kThreads = 1024;
  static constexpr int64_t kRun = 16;
  struct Shared {
    uint32_t counts[kNumDigits][kMaxDigitValues];
    DigitChoice choice;
  };
  static constexpr int64_t kMaxSharedBytes = sizeof(Shared);

  TagcEncodeJob job;

  template <typename Group>
  ISTHMUS_DEVICE void operator()(Group& group) const {
    const int64_t num_samples = job.sample_runs * kRun;
    const int64_t stretch = job.shape.num_elements / kRun / job.sample_runs;
    auto& shared = group.template shared<Shared>();
    clear(group, shared.counts[0], kNumDigits * kMaxDigitValues);
    group.sync();
    for_each_of_group(group, num_samples, [&](int64_t sample) {
      const int64_t run = sample / kRun;
      const auto jitter = static_cast<int64_t>(mix(run) % static_cast<uint64_t>(stretch));
      const int64_t element = kRun * (run * stretch + jitter) + sample % kRun;
      const uint32_t bits =
          magnitude(widen(static_cast<const Piece*>(job.piece.data)[element]) + job.residual[element]);
      job.samples[sample] = bits < kInfinityBits ? bits : 0;
    });
    group.sync();
    for (int digit = 0; digit < kNumDigits; ++digit) {
      const PartialThreshold threshold = choose(group, digit, shared);
      if (!threshold.found) {
        break;
      }
      for_each_of_group(group, num_samples, [&](int64_t sample) {
        const uint32_t bits = job.samples[sample];
        const bool begins_alike = digit == 0 || (bits ^ threshold.prefix) >> digit_shift(digit - 1) == 0;
        if (begins_alike && bits != 0) {
          group.fetch_add(shared.counts[digit][digit_of(bits, digit)], 1U);
        }
      });
      group.sync();
    }
    const PartialThreshold threshold = choose(group, kNumDigits, shared);
    if (group.thread() == 0) {
      job.state->bound = threshold.found ? threshold.prefix : 1;
    }
  }

 private:
  template <typename Group>
  ISTHMUS_DEVICE PartialThreshold choose(Group& group, int num_digits, Shared& shared) const {
    return choose_digits(
        group, num_digits, job.sample_keep, [&](int digit) { return shared.counts[digit]; }, shared.choice);
  }
};

// Four neighbours, loaded and stored at once where their addresses allow.
template <typename T>
struct alignas(4 * sizeof(T)) FourOf {
  T value[4];
};
using Quad = FourOf<float>;

// Elements first ... first + 3 of `count`; zeros after the last.
template <bool kAligned, typename T>
ISTHMUS_DEVICE Quad load_quad(const T* values, int64_t first, int64_t count) {
  Quad quad = {};
  if (kAligned && first + 4 <= count) {
    const FourOf<T> loaded = *reinterpret_cast<const FourOf<T>*>(values + first);
    for (int i = 0; i < 4; ++i) {
      quad.value[i] = widen(loaded.value[i]);
    }
    return quad;
  }
  for (int i = 0; i < 4; ++i) {
    if (first + i < count) {
      quad.value[i] = widen(values[first + i]);
    }
  }
  return quad;
}

template <bool kAligned>
ISTHMUS_DEVICE void store_quad(const Quad& quad, float* values, int64_t first, int64_t count) {
  if (kAligned && first + 4 <= count) {
    *reinterpret_cast<Quad*>(values + first) = quad;
    return;
  }
  for (int i = 0; i < 4; ++i) {
    if (first + i < count) {
      values[first + i] = quad.value[i];
    }
  }
}

// residual += piece, except in blocks in which a sum is NaN or Inf: those are flagged and stay. Marks in the index what
// reaches the bound, and in flagged blocks what is not finite. Draws the blocks' rows. Reads piece and residual once
// and writes the residual once. kAligned: four
// elements of piece, and of residual, may be loaded at once.
template <typename Piece, bool kAligned>
struct AddAndMark {
  static constexpr int kThreads = kPassThreads;
  static constexpr int kResidentGroups = 8;  // it waits for memory most of the time
  struct Shared {
    uint32_t counts[kMaxDigitValues];
    uint32_t marks[kMaxBlockElements / 32];
  };
  static ISTHMUS_DEVICE int64_t shared_bytes(int64_t block_elements) { return sizeof(Shared) + 4 * block_elements; }
  static constexpr int64_t kMaxSharedBytes = sizeof(Shared) + 4 * kMaxBlockElements;

  TagcEncodeJob job;

  template <typename Group>
  ISTHMUS_DEVICE void operator()(Group& group) const {
    const TagcShape& shape = job.shape;
    auto& shared = group.template shared<Shared>();
    auto* sums = reinterpret_cast<Quad*>(&shared + 1);
    clear(group, shared.counts, kMaxDigitValues);
    clear(group, shared.marks, shape.block_elements / 32);
    const uint32_t bound = job.state->bound > 0 ? job.state->bound : 1;  // 0: nothing was sampled
    uint32_t candidates = 0;
    for_each_by_group(group, shape.num_blocks, [&](int64_t block) {
      const bool flagged = add_block(group, block, sums);
      for_each_of_group(group, shape.block_elements / 4, [&](int64_t q) {
        const Quad quad = sums[q];
        const uint32_t marks = mark(quad, flagged ? kInfinityBits : bound);
        if (marks != 0) {
          group.fetch_or(shared.marks[q / 8], marks << (4 * (q % 8)));
        }
        if (!flagged) {
          store_quad<kAligned>(quad, job.residual + block * shape.block_elements, 4 * q, elements_in(block));
          for_each_bit(marks, 0, [&](int64_t i) {
            group.fetch_add(shared.counts[digit_of(magnitude(quad.value[i]), 0)], 1U);
            ++candidates;
          });
        }
      });
      group.sync();
      write_block(group, block, flagged, shared.marks);
    });
    const uint64_t candidates_of_group = group.sum(candidates);
    if (group.thread() == 0) {
      group.fetch_add(job.state->candidates, static_cast<uint32_t>(candidates_of_group));
    }
    add_counts(group, shared.counts, job.state->counts[0]);
  }

 private:
  ISTHMUS_DEVICE int64_t elements_in(int64_t block) const {
    const int64_t left = job.shape.num_elements - block * job.shape.block_elements;
    return left < job.shape.block_elements ? left : job.shape.block_elements;
  }

  // Bit i: value i is at least `bound`, which is not 0.
  static ISTHMUS_DEVICE uint32_t mark(const Quad& quad, uint32_t bound) {
    uint32_t marks = 0;
    for (int i = 0; i < 4; ++i) {
      marks |= (magnitude(quad.value[i]) >= bound ? 1U : 0U) << i;
    }
    return marks;
  }

  // sums = piece + residual, zeros after the last. Returns whether one is NaN or Inf. A barrier.
  template <typename Group>
  ISTHMUS_DEVICE bool add_block(Group& group, int64_t block, Quad* sums) const {
    const int64_t first = block * job.shape.block_elements;
    const int64_t count = elements_in(block);
    bool non_finite = false;
    for_each_of_group(group, job.shape.block_elements / 4, [&](int64_t q) {
      const Quad piece = load_quad<kAligned>(static_cast<const Piece*>(job.piece.data) + first, 4 * q, count);
      const Quad residual = load_quad<kAligned>(job.residual + first, 4 * q, count);
      Quad sum;
      for (int i = 0; i < 4; ++i) {
        sum.value[i] = piece.value[i] + residual.value[i];
      }
      non_finite |= mark(sum, kInfinityBits) != 0;
      sums[q] = sum;
    });
    return group.any(non_finite);
  }

  // Leaves `marks` empty.
  template <typename Group>
  ISTHMUS_DEVICE void write_block(Group& group, int64_t block, bool flagged, uint32_t* marks) const {
    const int64_t words = job.shape.block_elements / 32;
    auto* index = reinterpret_cast<uint32_t*>(job.packet + job.layout.index);
    for_each_of_group(group, words, [&](int64_t w) {
      index[block * words + w] = marks[w];
      marks[w] = 0;
    });
    if (group.thread() == 0) {
      job.rows[block] = hash_block(seed_of(*job.context), block, job.shape.num_rows);
      if (flagged) {
        auto* flags = reinterpret_cast<uint64_t*>(job.packet + job.layout.flags);
        group.fetch_or(flags[block / 64], uint64_t{1} << (block % 64));
        group.fetch_add(job.counts->non_finite_blocks, uint64_t{1});
      }
    }
  }
};

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
