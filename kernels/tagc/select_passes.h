// The exact threshold of codec `tagc` on many groups: which elements of piece + residual are sent, as an index.
//
// A sample gives a bound that a few more than `keep` magnitudes probably reach. One pass over piece and residual adds
// them up, marks the elements that reach the bound, and counts their first digits; later passes read marked elements
// only. Two passes count the following digits, and one takes elements below the threshold out of the index. The first
// of the elements that equal it stay: where there are too many, a pass counts them by blocks. If the bound was too
// high, a pass that otherwise does nothing marks all elements. The last group of a pass combines the results of all
// groups.
#pragma once

#include "kernels/block/passes.h"
#include "kernels/tagc/digits.h"
#include "kernels/tagc/slab.h"

namespace isthmus::kernels::ISTHMUS_KERNEL_NAMESPACE {

// Counts a digit of marked elements that have the threshold's earlier digits. For digit 0 it does nothing, as it was
// counted when elements were marked, unless the bound was too high: then it marks all elements but zeros first.
struct CountDigit {
  struct Shared {
    uint32_t counts[kMaxDigitValues];
    DigitChoice choice;
  };
  static constexpr int64_t kMaxSharedBytes = sizeof(Shared);

  TagcEncodeJob job;
  int digit;

  template <typename Group>
  ISTHMUS_DEVICE void operator()(Group& group) const {
    const bool marks_all = digit == 0;
    const PartialThreshold threshold =
        marks_all ? PartialThreshold{0, job.keep, job.state->misled} : job.state->threshold;
    if (threshold.found == 0) {
      return;
    }
    auto& shared = group.template shared<Shared>();
    clear(group, shared.counts, kMaxDigitValues);
    group.sync();
    for_each_index_word(group, job, [&](int64_t word, uint32_t marks) {
      uint32_t not_zero = 0;
      for_each_marked_byte(job, word, marks_all ? ~0U : marks, [&](int byte, uint32_t of_byte, const Eight& eight) {
        ISTHMUS_UNROLL
        for (int i = 0; i < 8; ++i) {
          const uint32_t bits = magnitude(eight.value[i]);
          if ((of_byte >> i & 1) != 0 && bits != 0 && begins_alike(bits, threshold, digit)) {
            group.fetch_add(shared.counts[digit_of(bits, digit)], 1U);
            not_zero |= 1U << (8 * byte + i);
          }
        }
      });
      if (marks_all) {
        job.index()[word] = not_zero;
      }
    });
    group.sync();
    add_counts(group, shared.counts, job.state->counts[digit]);
    if (group.is_last(job.state->arrived)) {
      finish_digit(group, job, threshold, digit, shared.choice);
    }
  }
};

// Which elements of one byte of the index equal `bits`.
ISTHMUS_DEVICE uint32_t mark_equal(const Eight& eight, uint32_t bits) {
  uint32_t equal = 0;
  for (int i = 0; i < 8; ++i) {
    equal |= (magnitude(eight.value[i]) == bits ? 1U : 0U) << i;
  }
  return equal;
}

// If more elements equal the threshold than may stay, finds the word of the index with the last one that stays.
// Otherwise it does nothing.
struct CountTies {
  struct Shared {
    uint32_t ties_of_word[kMaxBlockElements / 32];
    DigitChoice choice;
  };
  static constexpr int64_t kMaxSharedBytes = sizeof(Shared);

  TagcEncodeJob job;

  template <typename Group>
  ISTHMUS_DEVICE void operator()(Group& group) const {
    if (job.state->spare_ties == 0) {
      return;
    }
    const PartialThreshold threshold = job.state->threshold;
    for_each_index_word(group, job, [&](int64_t word, uint32_t marks) {
      const uint32_t ties = count_ties(word, marks, threshold.prefix);
      if (ties != 0) {
        group.fetch_add(job.tie_counts[block_of_word(job.shape, word)], ties);
      }
    });
    if (group.is_last(job.state->arrived)) {
      find_cut(group, threshold, group.template shared<Shared>());
    }
  }

 private:
  ISTHMUS_DEVICE uint32_t count_ties(int64_t word, uint32_t marks, uint32_t bits) const {
    uint32_t ties = 0;
    for_each_marked_byte(job, word, marks, [&](int, uint32_t marks_of_byte, const Eight& eight) {
      ties += count_bits(mark_equal(eight, bits) & marks_of_byte);
    });
    return ties;
  }

  // Finds the block, then the word in it. Places are counted from the end, so that the highest digit is the lowest
  // place.
  template <typename Group>
  ISTHMUS_DEVICE void find_cut(Group& group, const PartialThreshold& threshold, Shared& shared) const {
    const auto blocks = static_cast<uint32_t>(job.shape.num_blocks);
    const DigitChoice in_blocks = choose_digit(
        group, blocks, threshold.wanted, [&](uint32_t i) { return job.tie_counts[blocks - 1 - i]; }, shared.choice);
    const auto words = static_cast<uint32_t>(job.shape.block_elements / 32);
    const int64_t first_word = int64_t{blocks - 1 - in_blocks.digit} * words;
    for_each_of_group(group, words, [&](int64_t w) {
      shared.ties_of_word[w] = count_ties(first_word + w, job.index()[first_word + w], threshold.prefix);
    });
    group.sync();
    const DigitChoice in_words = choose_digit(
        group, words, in_blocks.wanted, [&](uint32_t i) { return shared.ties_of_word[words - 1 - i]; }, shared.choice);
    if (group.thread() == 0) {
      job.state->cut = {first_word + words - 1 - in_words.digit, in_words.wanted};
    }
  }
};

// Leaves the kept elements in the index, and writes them as the slabs' keys, without flagged blocks.
struct ApplyThreshold {
  static constexpr int64_t kMaxSharedBytes = SpreadTile::kMaxSharedBytes;

  TagcEncodeJob job;

  template <typename Group>
  ISTHMUS_DEVICE void operator()(Group& group) const {
    uint32_t* index = job.index();
    const PartialThreshold threshold = job.state->threshold;
    uint64_t chosen = 0;
    for_each_by_group(group, num_tiles(job.shape), [&](int64_t tile) {
      SpreadTile::run(group, job.shape, tile, job.slabs.keys, [&](int64_t word) -> uint32_t {
        if (is_flagged(job.flags(), block_of_word(job.shape, word))) {
          return 0;
        }
        const uint32_t marks = index[word];
        const uint32_t kept = threshold.found != 0 && marks != 0 ? keep(word, marks, threshold.prefix) : marks;
        if (kept != marks) {
          index[word] = kept;
        }
        chosen += count_bits(kept);
        return kept;
      });
    });
    chosen = group.sum(chosen);
    if (group.thread() == 0) {
      group.fetch_add(job.counts->chosen_elements, chosen);
    }
  }

 private:
  ISTHMUS_DEVICE uint32_t keep(int64_t word, uint32_t marks, uint32_t threshold_bits) const {
    uint32_t above = 0;
    uint32_t equal = 0;
    for_each_marked_byte(job, word, marks, [&](int byte, uint32_t, const Eight& eight) {
      for (int i = 0; i < 8; ++i) {
        above |= (magnitude(eight.value[i]) > threshold_bits ? 1U : 0U) << (8 * byte + i);
      }
      equal |= mark_equal(eight, threshold_bits) << (8 * byte);
    });
    return marks & (above | staying_ties(word, equal & marks));
  }

  ISTHMUS_DEVICE uint32_t staying_ties(int64_t word, uint32_t equal) const {
    if (job.state->spare_ties == 0 || word < job.state->cut.word) {
      return equal;
    }
    return word == job.state->cut.word ? first_bits(equal, job.state->cut.may_stay) : 0;
  }
};

}  // namespace isthmus::kernels::ISTHMUS_KERNEL_NAMESPACE
