// The exact threshold of codec `tagc` on CPU: a sampled lower bound, one pass that adds the residual and collects the
// elements that reach the bound, and exact selection among these, or among all elements if the bound was too high.
#pragma once

#include "kernels/tagc/block.h"

namespace isthmus::kernels::ISTHMUS_KERNEL_NAMESPACE {

// Every magnitude above `bits` is kept, and the first `ties` that equal it.
struct Threshold {
  uint32_t bits;
  int64_t ties;
};

// The threshold that keeps the `keep` largest of the nonzero magnitudes that for_each(visit) visits. It is searched
// digit by digit, from the top.
template <typename ForEach>
Threshold find_threshold(int64_t keep, ForEach for_each) {
  constexpr int kDigitBits = 11;
  constexpr uint32_t kDigits = 1U << kDigitBits;
  uint32_t prefix = 0;
  uint32_t prefix_mask = 0;
  for (int shift = 2 * kDigitBits; shift >= 0; shift -= kDigitBits) {
    int64_t counts[kDigits] = {};
    for_each(
        [&](uint32_t bits) { counts[bits >> shift & (kDigits - 1)] += (bits & prefix_mask) == prefix && bits != 0; });
    uint32_t digit = kDigits;
    while (digit > 0 && counts[digit - 1] < keep) {
      keep -= counts[--digit];
    }
    if (digit == 0) {
      return {0, 0};  // there are no more than `keep`
    }
    prefix |= (digit - 1) << shift;
    prefix_mask |= (kDigits - 1) << shift;
  }
  return {prefix, keep};
}

// residual += piece for 64 elements; bit i of the result: |residual[i]| is at least `bound`, as bit patterns. `largest`
// becomes the largest of these, if it was lower.
inline uint64_t add_and_mark_64(const float* __restrict piece, float* __restrict residual, uint32_t bound,
                                uint32_t& largest) {
  const int32_t signed_bound = static_cast<int32_t>(bound);  // magnitudes have no sign bit
  int32_t most = static_cast<int32_t>(largest);
  uint8_t reached[64];
  for (int i = 0; i < 64; ++i) {
    residual[i] += piece[i];
    const auto bits = static_cast<int32_t>(magnitude(residual[i]));
    reached[i] = bits >= signed_bound;
    most = bits > most ? bits : most;
  }
  largest = static_cast<uint32_t>(most);
  uint64_t marked = 0;
  for (int64_t byte = 0; byte < 8; ++byte) {  // eight bytes of 0 or 1 become eight bits
    uint64_t eight;
    __builtin_memcpy(&eight, reached + 8 * byte, sizeof(eight));
    marked |= (eight * 0x0102040810204080) >> 56 << (8 * byte);
  }
  return marked;
}

template <typename Visit>
void for_each_block(const TagcShape& shape, Visit visit) {
  for (int64_t block = 0; block < shape.num_blocks; ++block) {
    const int64_t first = block * shape.block_elements;
    const int64_t left = shape.num_elements - first;
    visit(block, first, left < shape.block_elements ? left : shape.block_elements);
  }
}

// The result of one pass over the piece.
struct Collected {
  int64_t count = 0;  // magnitudes of at least the bound; listed in order, up to the capacity
  int64_t capacity = 0;
  uint32_t* candidates = nullptr;

  void append(const float* values, uint64_t marked) {
    const int64_t marked_count = __builtin_popcountll(marked);
    if (count + marked_count <= capacity) {
      int64_t next = count;
      for_each_bit(marked, 0, [&](int64_t i) { candidates[next++] = magnitude(values[i]); });
    }
    count += marked_count;
  }
};

// Whether a sum piece[i] + residual[i] is NaN or Inf.
inline bool sums_non_finite(const float* piece, const float* residual, int64_t count) {
  uint32_t overflow = 0;  // the top bit: some exponent was all ones
  for (int64_t i = 0; i < count; ++i) {
    overflow |= magnitude(piece[i] + residual[i]) + (kSignBit - kInfinityBits);
  }
  return overflow >= kSignBit;
}

inline uint64_t mark_non_finite(const float* piece, const float* residual, int64_t count) {
  uint64_t marked = 0;
  for (int64_t i = 0; i < count; ++i) {
    marked |= static_cast<uint64_t>(magnitude(piece[i] + residual[i]) >= kInfinityBits) << i;
  }
  return marked;
}

// The same for up to 64 elements.
inline uint64_t add_and_mark(const float* piece, float* residual, int64_t count, uint32_t bound, uint32_t& largest) {
  if (count >= 64) {
    return add_and_mark_64(piece, residual, bound, largest);
  }
  uint64_t marked = 0;
  for (int64_t i = 0; i < count; ++i) {
    residual[i] += piece[i];
    const uint32_t bits = magnitude(residual[i]);
    marked |= static_cast<uint64_t>(bits >= bound) << i;
    largest = bits > largest ? bits : largest;
  }
  return marked;
}

// Prefetches the same word of the next block while this one is worked on. Past the end it does nothing.
inline void prefetch_next(const TagcShape& shape, const float* piece, const float* residual, int64_t element) {
  constexpr int64_t kLine = 16;
  const int64_t next = element + shape.block_elements;
  for (int64_t i = next; i < next + 64 && i < shape.num_elements; i += kLine) {
    __builtin_prefetch(piece + i);
    __builtin_prefetch(residual + i, 1);
  }
}

inline Collected collect(const TagcShape& shape, uint32_t bound, const float* piece, float* residual, uint64_t* flags,
                         uint64_t* index, Collected collected, Selection& selection) {
  for (int64_t word = 0; word < shape.flag_words(); ++word) {
    flags[word] = 0;
  }
  for_each_block(shape, [&](int64_t block, int64_t first, int64_t count) {
    uint64_t* block_index = index + block * shape.block_words();
    const bool flagged = sums_non_finite(piece + first, residual + first, count);
    selection.non_finite_blocks += flagged;
    flags[block / 64] |= static_cast<uint64_t>(flagged) << (block % 64);
    for (int64_t w = 0; w < shape.block_words(); ++w) {
      const float* word_piece = piece + first + 64 * w;
      float* word_residual = residual + first + 64 * w;
      const int64_t word_count = count - 64 * w < 64 ? count - 64 * w : 64;
      prefetch_next(shape, piece, residual, first + 64 * w);
      if (flagged) {
        block_index[w] = mark_non_finite(word_piece, word_residual, word_count);
      } else {
        block_index[w] = add_and_mark(word_piece, word_residual, word_count, bound, selection.largest);
        collected.append(word_residual, block_index[w]);
      }
    }
  });
  return collected;
}

// Removes from the index what the threshold does not keep, and returns how many stay. The index marks all elements that
// reach `threshold` in blocks without a flag; next_magnitude(i) is called for each of them in ascending order.
template <typename NextMagnitude>
int64_t apply_threshold(const TagcShape& shape, Threshold threshold, const uint64_t* flags, uint64_t* index,
                        NextMagnitude next_magnitude) {
  int64_t kept = 0;
  for_each_block(shape, [&](int64_t block, int64_t first, int64_t) {
    if (is_flagged(flags, block)) {
      return;
    }
    uint64_t* block_index = index + block * shape.block_words();
    for (int64_t w = 0; w < shape.block_words(); ++w) {
      uint64_t above = 0;
      uint64_t equal = 0;
      for_each_bit(block_index[w], 0, [&](int64_t i) {
        const uint32_t bits = next_magnitude(first + 64 * w + i);
        above |= static_cast<uint64_t>(bits > threshold.bits) << i;
        equal |= static_cast<uint64_t>(bits == threshold.bits) << i;
      });
      const uint64_t ties = first_bits(equal, threshold.ties);
      threshold.ties -= __builtin_popcountll(ties);
      block_index[w] = above | ties;
      kept += __builtin_popcountll(block_index[w]);
    }
  });
  return kept;
}

// Selects among all elements. The residual already holds the sums.
inline int64_t select_among_all(const TagcShape& shape, int64_t keep, const float* residual, const uint64_t* flags,
                                uint64_t* index) {
  const Threshold threshold = find_threshold(keep, [&](auto visit) {
    for_each_block(shape, [&](int64_t block, int64_t first, int64_t count) {
      for (int64_t i = is_flagged(flags, block) ? count : 0; i < count; ++i) {
        visit(magnitude(residual[first + i]));
      }
    });
  });
  for_each_block(shape, [&](int64_t block, int64_t, int64_t count) {
    for (int64_t i = is_flagged(flags, block) ? count : 0; i < count; ++i) {
      if (i % 64 == 0) {
        const int64_t rest = count - i;
        index[block * shape.block_words() + i / 64] = rest < 64 ? (uint64_t{1} << rest) - 1 : ~uint64_t{0};
      }
    }
  });
  return apply_threshold(shape, threshold, flags, index, [&](int64_t i) { return magnitude(residual[i]); });
}

inline Selection select(const TagcShape& shape, int64_t keep, uint32_t bound, const float* piece, float* residual,
                        uint64_t* flags, uint64_t* index, uint32_t* candidates) {
  Selection selection;
  Collected collected;
  collected.capacity = selection_capacity(shape, keep);
  collected.candidates = candidates;
  collected = collect(shape, bound, piece, residual, flags, index, collected, selection);
  const bool all_there = collected.count >= keep || bound <= 1;
  if (!all_there || collected.count > collected.capacity) {
    selection.kept_elements = select_among_all(shape, keep, residual, flags, index);
    return selection;
  }
  const Threshold threshold = find_threshold(keep, [&](auto visit) {
    for (int64_t i = 0; i < collected.count; ++i) {
      visit(candidates[i]);
    }
  });
  const uint32_t* next = candidates;
  selection.kept_elements = apply_threshold(shape, threshold, flags, index, [&](int64_t) { return *next++; });
  return selection;
}

inline uint32_t sample_bound(const TagcShape& shape, int64_t keep, const float* piece, const float* residual,
                             uint32_t* candidates) {
  constexpr int64_t kMostRuns = 4096;
  const TagcSample sample(shape, keep, kMostRuns);
  if (sample.runs == 0) {
    return 1;
  }
  int64_t samples = 0;
  for (int64_t run = 0; run < sample.runs; ++run) {
    const int64_t first = TagcSample::first_of(shape, sample.runs, run);
    for (int64_t i = first; i < first + TagcSample::kRun; ++i) {
      const uint32_t bits = magnitude(piece[i] + residual[i]);
      candidates[samples++] = bits < kInfinityBits ? bits : 0;
    }
  }
  const Threshold threshold = find_threshold(sample.keep, [&](auto visit) {
    for (int64_t i = 0; i < samples; ++i) {
      visit(candidates[i]);
    }
  });
  return threshold.bits == 0 ? 1 : threshold.bits;
}

}  // namespace isthmus::kernels::ISTHMUS_KERNEL_NAMESPACE
