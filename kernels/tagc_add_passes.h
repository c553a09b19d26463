// The first passes of an encoding: piece + residual, what is not finite, and what reaches a guessed bound.
#pragma once

#include "kernels/float_types.h"
#include "kernels/passes.h"
#include "kernels/tagc_block.h"
#include "kernels/tagc_digits.h"
#include "kernels/tagc_job.h"

namespace isthmus::kernels::ISTHMUS_KERNEL_NAMESPACE {

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

}  // namespace isthmus::kernels::ISTHMUS_KERNEL_NAMESPACE
