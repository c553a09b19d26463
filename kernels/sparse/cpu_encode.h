// The CPU executor's encoding of codec `sparse`. Compiled once for each instruction set.
//
// A block's threshold is found in three steps, of which only the last must be exact: a lower bound from the maxima of
// sub-groups of the block (at least as many elements reach a value as sub-groups' maxima do), the candidates that reach
// the bound, and the threshold among these.
#pragma once

#include <cstddef>
#include <type_traits>

#include "kernels/sparse/block.h"
#include "kernels/tagc/lanes.h"

namespace isthmus::kernels::ISTHMUS_KERNEL_NAMESPACE {

inline constexpr int64_t kBlockWords = kSparseBlockElements / 64;
inline constexpr int64_t kQuarterWords = kBlockWords / kSparseQuarters;

// Magnitudes have no sign bit, so that they may be compared as signed numbers, which every instruction set can.
inline int32_t signed_magnitude(float value) { return static_cast<int32_t>(magnitude(value)); }
inline int32_t larger(int32_t a, int32_t b) { return a > b ? a : b; }

// The sums of a block: of piece and residual, or the piece alone.
template <bool kFeedback>
struct Sums {
  const float* piece;
  float* residual;

  float operator[](int64_t i) const {
    if constexpr (kFeedback) {
      return piece[i] + residual[i];
    } else {
      return piece[i];
    }
  }
};

// The maxima of as many equal sub-groups of a block as are needed for a bound near the `keep` largest. Returns how
// many.
template <bool kFeedback>
inline int64_t find_maxima(const Sums<kFeedback>& sums, int64_t keep, int32_t* maxima) {
  constexpr int64_t kLanes = 16;
  constexpr int64_t kFew = 64;
  constexpr int64_t kMany = 256;
  if (keep > kMany * 5 / 8) {
    for (int64_t i = 0; i < kSparseBlockElements; ++i) {
      maxima[i] = signed_magnitude(sums[i]);
    }
    return kSparseBlockElements;
  }
  for (int64_t first = 0; first < kMany; first += kLanes) {
    for (int64_t lane = 0; lane < kLanes; ++lane) {
      const int64_t i = 4 * first + lane;
      const int32_t low = larger(signed_magnitude(sums[i]), signed_magnitude(sums[i + kLanes]));
      const int32_t high = larger(signed_magnitude(sums[i + 2 * kLanes]), signed_magnitude(sums[i + 3 * kLanes]));
      maxima[first + lane] = larger(low, high);
    }
  }
  if (keep > kFew * 5 / 8) {
    return kMany;
  }
  for (int64_t i = 0; i < kFew; ++i) {
    maxima[i] = larger(larger(maxima[i], maxima[i + kFew]), larger(maxima[i + 2 * kFew], maxima[i + 3 * kFew]));
  }
  return kFew;
}

// num_values: a multiple of 16, so that whole vectors are compared.
inline int32_t count_reaching(const int32_t* values, int64_t num_values, int32_t bound) {
  int32_t count = 0;
  for (int64_t first = 0; first < num_values; first += 16) {
    for (int64_t i = first; i < first + 16; ++i) {
      count += values[i] >= bound;
    }
  }
  return count;
}

// `reached` is reached by `reaching` values: by `keep` of them at least. `missed` is above it and reached by `above`,
// which are fewer.
struct Bracket {
  int32_t reached;
  int64_t reaching;
  int32_t missed;
  int64_t above;
};

// Narrows the bracket until no more than keep + slack values reach it, or it cannot be narrowed any more.
inline Bracket narrow(const int32_t* values, int64_t num_values, int64_t keep, int64_t slack, Bracket bracket) {
  while (bracket.reaching > keep + slack && bracket.missed - bracket.reached > 1) {
    const int32_t middle = bracket.reached + (bracket.missed - bracket.reached) / 2;
    const int64_t reaching = count_reaching(values, num_values, middle);
    if (reaching >= keep) {
      bracket.reached = middle;
      bracket.reaching = reaching;
    } else {
      bracket.missed = middle;
      bracket.above = reaching;
    }
  }
  return bracket;
}

// The kept elements of a block as bits: 64 elements a word.
struct Marks {
  uint64_t words[kBlockWords];

  int64_t count(int64_t first_word, int64_t num_words) const {
    int64_t count = 0;
    for (int64_t w = first_word; w < first_word + num_words; ++w) {
      count += __builtin_popcountll(words[w]);
    }
    return count;
  }
};

// Bit i: |sums[i]| is at least `bound`.
inline uint64_t mark_64(const float* sums, uint32_t bound) {
  uint8_t reached[64];
  for (int i = 0; i < 64; ++i) {
    reached[i] = signed_magnitude(sums[i]) >= static_cast<int32_t>(bound);
  }
  uint64_t marked = 0;
  for (int64_t byte = 0; byte < 8; ++byte) {  // eight bytes of 0 or 1 become eight bits
    uint64_t eight;
    __builtin_memcpy(&eight, reached + 8 * byte, sizeof(eight));
    marked |= (eight * 0x0102040810204080) >> 56 << (8 * byte);
  }
  return marked;
}

// Adds the piece to the residual, if there is one. Marks elements that reach `bound`.
template <bool kFeedback>
inline Marks add_and_mark(const Sums<kFeedback>& sums, uint32_t bound) {
  Marks marks;
  for (int64_t w = 0; w < kBlockWords; ++w) {
    if constexpr (kFeedback) {
      marks.words[w] = add_and_mark_64(sums.piece + 64 * w, sums.residual + 64 * w, bound);
    } else {
      marks.words[w] = mark_64(sums.piece + 64 * w, bound);
    }
  }
  return marks;
}

// Leaves `keep` marks, those of the largest sums and among equals the first. There are at least as many.
inline void keep_largest(const float* sums, int64_t num_marks, int64_t keep, Bracket bracket, Marks& marks) {
  int32_t candidates[kSparseBlockElements + 16];
  int64_t num_candidates = 0;
  for (int64_t w = 0; w < kBlockWords; ++w) {
    for_each_bit(marks.words[w], 64 * w, [&](int64_t i) { candidates[num_candidates++] = signed_magnitude(sums[i]); });
  }
  for (int64_t i = 0; i < 16; ++i) {
    candidates[num_candidates + i] = 0;  // what fills up the last vector reaches no bound
  }
  const int64_t num_values = (num_candidates + 15) / 16 * 16;
  bracket.reaching = num_marks;
  bracket = narrow(candidates, num_values, keep, 0, bracket);
  int64_t ties = keep - bracket.above;  // of what is in the bracket: all of it, or equal magnitudes
  const int32_t* next = candidates;
  for (int64_t w = 0; w < kBlockWords; ++w) {
    uint64_t kept = 0;
    for (uint64_t rest = marks.words[w]; rest != 0; rest &= rest - 1) {
      const int32_t candidate = *next++;
      const bool above = candidate >= bracket.missed;
      const bool tie = !above && candidate >= bracket.reached && ties > 0;
      ties -= tie;
      kept |= above || tie ? rest & -rest : 0;
    }
    marks.words[w] = kept;
  }
}

// Adds marks from the front until there are `missing` more.
inline void mark_first(int64_t missing, Marks& marks) {
  for (int64_t w = 0; w < kBlockWords && missing > 0; ++w) {
    const uint64_t more = first_bits(~marks.words[w], missing);
    missing -= __builtin_popcountll(more);
    marks.words[w] |= more;
  }
}

// A whole block whose sums are finite. `largest`: of all magnitudes; maxima: num_maxima of sub-groups.
template <bool kFeedback>
inline Marks choose(const Sums<kFeedback>& sums, int64_t keep, const int32_t* maxima, int64_t num_maxima,
                    int32_t largest) {
  const int64_t slack = keep / 8 + 1;
  const Bracket bound = narrow(maxima, num_maxima, keep, slack, {0, num_maxima, largest + 1, 0});
  Marks marks = add_and_mark(sums, static_cast<uint32_t>(larger(bound.reached, 1)));
  const int64_t num_marks = marks.count(0, kBlockWords);
  if (num_marks < keep) {
    mark_first(keep - num_marks, marks);  // all the others are zeros
  } else if (num_marks > keep) {
    const float* values = kFeedback ? sums.residual : sums.piece;
    keep_largest(values, num_marks, keep, {bound.reached, 0, largest + 1, 0}, marks);
  }
  return marks;
}

// Writes the marked elements, and subtracts from the residual, which holds the sums, what decoding will give.
template <bool kFeedback, typename Value>
inline void write_block(Value /*value*/, const Sums<kFeedback>& sums, const Marks& marks, int32_t largest,
                        const SparseBlock<uint8_t>& block) {
  const uint16_t scale_bits = Value::scale(static_cast<uint32_t>(largest));
  const float scale = widen_bfloat16(scale_bits);
  if constexpr (std::is_same_v<Value, SparseValue<SparseValueType::kInt8>>) {
    __builtin_memcpy(block.scale, &scale_bits, sizeof(scale_bits));
  }
  const float* values = kFeedback ? sums.residual : sums.piece;
  auto* wire = reinterpret_cast<typename Value::Wire*>(block.values);
  int64_t next = 0;
  for (int64_t w = 0; w < kBlockWords; ++w) {
    for_each_bit(marks.words[w], 64 * w, [&](int64_t i) {
      const float value = values[i];
      const typename Value::Wire sent = Value::encode(value, scale);
      block.offsets[next] = static_cast<uint8_t>(i);
      wire[next++] = sent;
      if constexpr (kFeedback) {
        sums.residual[i] = value - Value::decode(sent, scale);
      }
    });
  }
  for (int64_t quarter = 0; quarter < kSparseQuarters; ++quarter) {
    block.set_count(quarter, static_cast<uint32_t>(marks.count(quarter * kQuarterWords, kQuarterWords)));
  }
}

inline void write_flagged(const SparseShape& shape, int64_t keep, const SparseBlock<uint8_t>& block) {
  for (int64_t quarter = 0; quarter < kSparseQuarters; ++quarter) {
    block.set_count(quarter, kSparseFlaggedCount);
  }
  if (shape.has_scales()) {
    __builtin_memset(block.scale, 0, 2);
  }
  __builtin_memset(block.offsets, 0, static_cast<size_t>(keep));
  __builtin_memset(block.values, 0, static_cast<size_t>(keep * shape.value_bytes()));
}

// A whole block. Returns whether it is flagged.
template <bool kFeedback>
inline bool encode_block(const SparseShape& shape, int64_t keep, const Sums<kFeedback>& sums,
                         const SparseBlock<uint8_t>& block) {
  int32_t maxima[kSparseBlockElements];
  const int64_t num_maxima = find_maxima(sums, keep, maxima);
  int32_t largest = 0;
  for (int64_t i = 0; i < num_maxima; ++i) {
    largest = larger(largest, maxima[i]);
  }
  if (largest >= static_cast<int32_t>(kInfinityBits)) {
    write_flagged(shape, keep, block);
    return true;
  }
  const Marks marks = choose(sums, keep, maxima, num_maxima, largest);
  with_value_type(shape.value_type, [&](auto value) { write_block(value, sums, marks, largest, block); });
  return false;
}

// A block that is shorter, as one that is filled up with zeros: those come last among equals, and are never kept.
template <bool kFeedback>
inline bool encode_short_block(const SparseShape& shape, int64_t keep, int64_t count, const Sums<kFeedback>& sums,
                               const SparseBlock<uint8_t>& block) {
  float piece[kSparseBlockElements] = {};
  float residual[kSparseBlockElements] = {};
  const auto bytes = static_cast<size_t>(count) * sizeof(float);
  __builtin_memcpy(piece, sums.piece, bytes);
  if constexpr (kFeedback) {
    __builtin_memcpy(residual, sums.residual, bytes);
  }
  const bool flagged = encode_block(shape, keep, Sums<kFeedback>{piece, residual}, block);
  if constexpr (kFeedback) {
    __builtin_memcpy(sums.residual, residual, bytes);
  }
  return flagged;
}

// Prefetches the next block, while this one is worked on.
inline void prefetch_block(const float* piece, const float* residual) {
  constexpr int64_t kLine = 16;
  for (int64_t i = 0; i < kSparseBlockElements; i += kLine) {
    __builtin_prefetch(piece + i);
    if (residual != nullptr) {
      __builtin_prefetch(residual + i, 1);
    }
  }
}

template <bool kFeedback>
inline SparseCounts encode_blocks(const SparseShape& shape, const SparseLayout& layout, const float* piece,
                                  float* residual, uint8_t* packet) {
  SparseCounts counts;
  for (int64_t b = 0; b < shape.num_blocks; ++b) {
    const int64_t first = b * kSparseBlockElements;
    const int64_t count = shape.elements_of(b);
    const Sums<kFeedback> sums = {piece + first, kFeedback ? residual + first : nullptr};
    const SparseBlock<uint8_t> block(shape, layout, b, packet);
    if (shape.num_elements - first >= 2 * kSparseBlockElements) {
      prefetch_block(sums.piece + kSparseBlockElements, kFeedback ? sums.residual + kSparseBlockElements : nullptr);
    }
    const int64_t keep = shape.keep_of(b);
    const bool flagged = count < kSparseBlockElements ? encode_short_block(shape, keep, count, sums, block)
                                                      : encode_block(shape, keep, sums, block);
    counts.kept_elements += flagged ? 0 : keep;
    counts.non_finite_blocks += flagged;
  }
  return counts;
}

inline SparseCounts encode_sparse(const SparseShape& shape, const SparseLayout& layout, const float* piece,
                                  float* residual, uint8_t* packet) {
  return residual == nullptr ? encode_blocks<false>(shape, layout, piece, residual, packet)
                             : encode_blocks<true>(shape, layout, piece, residual, packet);
}

}  // namespace isthmus::kernels::ISTHMUS_KERNEL_NAMESPACE
