// The first passes of an encoding: piece + residual, what is not finite, and what reaches a guessed bound.
#pragma once

#include "kernels/block/float_types.h"
#include "kernels/block/magnitudes.h"
#include "kernels/block/passes.h"
#include "kernels/tagc/block.h"
#include "kernels/tagc/digits.h"
#include "kernels/tagc/job.h"
#include "kernels/tagc/slab.h"

namespace isthmus::kernels::ISTHMUS_KERNEL_NAMESPACE {

// The first pass, in one group. It clears the counters of later passes, and the packet's flags and padding, and guesses
// the bound (TagcSample).
template <typename Piece>
struct Prepare {
  static constexpr int kThreads = 1024;
  static constexpr int64_t kRun = TagcSample::kRun;
  struct Shared {
    uint32_t counts[kMaxDigitValues];
    DigitChoice choice;
    uint32_t samples[kRun * kMaxSampleRuns];
  };
  static constexpr int64_t kMaxSharedBytes = sizeof(Shared);

  TagcEncodeJob job;

  template <typename Group>
  ISTHMUS_DEVICE void operator()(Group& group) const {
    auto& shared = group.template shared<Shared>();
    clear(group, reinterpret_cast<uint32_t*>(job.state), sizeof(SelectState) / 4);
    if (group.thread() == 0) {
      begin_counting(job);
    }
    clear_bytes(group, kHeaderWords * 8, job.layout.index);
    clear_bytes(group, job.layout.index + 8 * job.shape.index_words(), job.layout.sketch);
    const int64_t num_samples = job.sample_runs * kRun;
    take_samples(group, num_samples, shared.samples);
    PartialThreshold threshold = {0, job.sample_keep, num_samples > 0 ? 1U : 0U};
    for (int digit = 0; digit < kNumDigits && threshold.found != 0; ++digit) {
      threshold = count_digit(group, threshold, digit, num_samples, shared);
    }
    group.sync();  // the state is clear
    if (group.thread() == 0) {
      job.state->bound = threshold.found != 0 ? threshold.prefix : 1;
    }
  }

 private:
  // Clears the packet from `begin` to `end`, multiples of 8.
  template <typename Group>
  ISTHMUS_DEVICE void clear_bytes(const Group& group, int64_t begin, int64_t end) const {
    clear(group, reinterpret_cast<uint64_t*>(job.packet + begin), (end - begin) / 8);
  }

  template <typename Group>
  ISTHMUS_DEVICE void take_samples(const Group& group, int64_t num_samples, uint32_t* samples) const {
    for_each_of_group(group, num_samples, [&](int64_t sample) {
      const int64_t element = TagcSample::first_of(job.shape, job.sample_runs, sample / kRun) + sample % kRun;
      const uint32_t bits =
          magnitude(widen(static_cast<const Piece*>(job.piece.data)[element]) + job.residual[element]);
      samples[sample] = bits < kInfinityBits ? bits : 0;
    });
  }

  template <typename Group>
  ISTHMUS_DEVICE PartialThreshold count_digit(Group& group, const PartialThreshold& threshold, int digit,
                                              int64_t num_samples, Shared& shared) const {
    clear(group, shared.counts, kMaxDigitValues);
    group.sync();
    for_each_of_group(group, num_samples, [&](int64_t sample) {
      const uint32_t bits = shared.samples[sample];
      if (bits != 0 && begins_alike(bits, threshold, digit)) {
        group.fetch_add(shared.counts[digit_of(bits, digit)], 1U);
      }
    });
    group.sync();
    return add_digit(group, threshold, digit, shared.counts, shared.choice);
  }
};

using Quad = SeveralOf<float, 4>;

// residual += piece, except in blocks where a sum is NaN or Inf: those are flagged and stay. It marks in the index what
// reaches the bound, and in flagged blocks what is not finite, and counts first digits. It draws the blocks' rows and
// clears the sketch. It reads piece and residual once and writes the residual once. A group takes tiles of whole
// blocks.
template <typename Piece>
struct AddAndMark {
  static constexpr int kResidentGroups = 3;  // 80 registers a thread: loads of a whole tile are in flight
  static constexpr int64_t kTileQuads = kMaxBlockElements / 4;
  static constexpr int kQuadsInFlight = kTileQuads / kPassThreads;
  static constexpr int64_t kMaxTileBlocks = kMaxBlockElements / kMinBlockElements;
  struct Shared {
    Quad sums[kTileQuads];
    uint32_t counts[kMaxDigitValues];
    uint32_t marks[kTileQuads / 8];
    uint32_t flagged[2][kMaxTileBlocks / 32];  // blocks of this tile, and of the next
    DigitChoice choice;
  };
  static constexpr int64_t kMaxSharedBytes = sizeof(Shared);

  TagcEncodeJob job;
  int64_t num_whole_tiles;  // of which 16 bytes may be loaded and stored at once

  template <typename Group>
  ISTHMUS_DEVICE void operator()(Group& group) const {
    auto& shared = group.template shared<Shared>();
    clear_sketch(group);
    clear(group, shared.counts, kMaxDigitValues);
    clear(group, shared.marks, kTileQuads / 8);
    clear(group, shared.flagged[0], 2 * kMaxTileBlocks / 32);
    group.sync();
    const uint32_t bound = job.state->bound;
    uint64_t candidates = 0;
    uint32_t largest = 0;  // of this thread's sums
    int turn = 0;
    for_each_by_group(group, num_turns(job.shape), [&](int64_t tile) {
      uint32_t* flagged = shared.flagged[turn];
      add_tile(group, tile, shared.sums, flagged);
      group.sync();
      clear(group, shared.flagged[1 - turn], kMaxTileBlocks / 32);
      candidates += mark_tile(group, tile, bound, flagged, shared, largest);
      group.sync();
      write_tile(group, tile, flagged, shared.marks);
      turn = 1 - turn;
    });
    if (job.magnitudes != nullptr && level_of_magnitude(largest) > job.magnitudes->largest) {
      group.fetch_max(job.magnitudes->largest, level_of_magnitude(largest));
    }
    candidates = group.sum(candidates);
    if (group.thread() == 0) {
      group.fetch_add(job.state->candidates, static_cast<uint32_t>(candidates));
    }
    add_counts(group, shared.counts, job.state->counts[0]);
    if (group.is_last(job.state->arrived)) {
      finish(group, bound, shared.choice);
    }
  }

  static ISTHMUS_DEVICE int64_t num_turns(const TagcShape& shape) {
    const int64_t blocks = kMaxBlockElements / shape.block_elements;
    return (shape.num_blocks + blocks - 1) / blocks;
  }

 private:
  template <typename Group>
  ISTHMUS_DEVICE void clear_sketch(const Group& group) const {
    using FourCells = SeveralOf<uint32_t, 4>;
    auto* cells = reinterpret_cast<FourCells*>(job.packet + job.layout.sketch);
    for_each_of_all(group, (job.layout.end - job.layout.sketch) / 16, [=](int64_t i) { cells[i] = FourCells{}; });
  }

  // Bit i: value i is at least `bound`, which is not 0.
  static ISTHMUS_DEVICE uint32_t mark(const Quad& quad, uint32_t bound) {
    uint32_t marks = 0;
    for (int i = 0; i < 4; ++i) {
      marks |= (magnitude(quad.value[i]) >= bound ? 1U : 0U) << i;
    }
    return marks;
  }

  ISTHMUS_DEVICE int64_t block_of(int64_t quad) const { return quad >> (lowest_bit(job.shape.block_elements) - 2); }

  static ISTHMUS_DEVICE bool is_set(const uint32_t* bits, int64_t i) { return (bits[i / 32] >> (i % 32) & 1) != 0; }

  // sums = piece + residual, with zeros after the last. Flags the tile's blocks in which a sum is NaN or Inf.
  template <typename Group>
  ISTHMUS_DEVICE void add_tile(Group& group, int64_t tile, Quad* sums, uint32_t* flagged) const {
    const auto put = [&](int64_t q, const Quad& sum) {
      sums[q] = sum;
      if (mark(sum, kInfinityBits) != 0) {
        group.fetch_or(flagged[block_of(q) / 32], 1U << (block_of(q) % 32));
      }
    };
    if (tile >= num_whole_tiles) {
      for_each_of_group(group, kTileQuads, [&](int64_t q) { put(q, add_up_to_end(tile * kTileQuads + q)); });
      return;
    }
    const auto* pieces = static_cast<const SeveralOf<Piece, 4>*>(job.piece.data) + tile * kTileQuads;
    const auto* residuals = reinterpret_cast<const Quad*>(job.residual) + tile * kTileQuads;
    for (int64_t base = group.thread(); base < kTileQuads; base += kQuadsInFlight * group.size()) {
      SeveralOf<Piece, 4> piece[kQuadsInFlight] = {};
      Quad residual[kQuadsInFlight] = {};
      ISTHMUS_UNROLL
      for (int i = 0; i < kQuadsInFlight; ++i) {
        const int64_t q = base + i * group.size();
        if (q < kTileQuads) {
          piece[i] = pieces[q];
          residual[i] = residuals[q];
        }
      }
      ISTHMUS_UNROLL
      for (int i = 0; i < kQuadsInFlight; ++i) {
        const int64_t q = base + i * group.size();
        if (q < kTileQuads) {
          for (int v = 0; v < 4; ++v) {
            residual[i].value[v] = widen(piece[i].value[v]) + residual[i].value[v];
          }
          put(q, residual[i]);
        }
      }
    }
  }

  ISTHMUS_DEVICE int64_t elements_from(int64_t quad) const { return job.shape.num_elements - 4 * quad; }

  ISTHMUS_DEVICE Quad add_up_to_end(int64_t quad) const {
    const Quad piece = load_neighbours<4>(static_cast<const Piece*>(job.piece.data) + 4 * quad, elements_from(quad));
    Quad sum = load_neighbours<4>(job.residual + 4 * quad, elements_from(quad));
    for (int i = 0; i < 4; ++i) {
      sum.value[i] = piece.value[i] + sum.value[i];
    }
    return sum;
  }

  // Returns how many elements this thread marked in blocks without a flag. `largest` becomes the largest magnitude of
  // these blocks, if it was lower. A thread reads the sums that it wrote.
  template <typename Group>
  ISTHMUS_DEVICE uint32_t mark_tile(Group& group, int64_t tile, uint32_t bound, const uint32_t* flagged, Shared& shared,
                                    uint32_t& largest) const {
    uint32_t candidates = 0;
    for_each_of_group(group, kTileQuads, [&](int64_t q) {
      const Quad sum = shared.sums[q];
      const bool is_flagged = is_set(flagged, block_of(q));
      const uint32_t marks = mark(sum, is_flagged ? kInfinityBits : bound);
      if (marks != 0) {
        group.fetch_or(shared.marks[q / 8], marks << (4 * (q % 8)));
      }
      if (is_flagged) {
        return;
      }
      const int64_t quad = tile * kTileQuads + q;
      store_neighbours(sum, 1, job.residual + 4 * quad, elements_from(quad));
      ISTHMUS_UNROLL
      for (int i = 0; i < 4; ++i) {
        largest = magnitude(sum.value[i]) > largest ? magnitude(sum.value[i]) : largest;
        if ((marks >> i & 1) != 0) {
          group.fetch_add(shared.counts[digit_of(magnitude(sum.value[i]), 0)], 1U);
          ++candidates;
        }
      }
    });
    return candidates;
  }

  // Empties `marks`.
  template <typename Group>
  ISTHMUS_DEVICE void write_tile(Group& group, int64_t tile, const uint32_t* flagged, uint32_t* marks) const {
    const int64_t first_word = tile * (kMaxBlockElements / 32);
    const int64_t num_words = 2 * job.shape.index_words();
    for_each_of_group(group, kMaxBlockElements / 32, [&](int64_t w) {
      if (first_word + w < num_words) {
        job.index()[first_word + w] = marks[w];
      }
      marks[w] = 0;
    });
    const int64_t blocks = kMaxBlockElements / job.shape.block_elements;
    for_each_of_group(group, blocks, [&](int64_t b) {
      const int64_t block = tile * blocks + b;
      if (block < job.shape.num_blocks) {
        draw_rows(job.shape, context_of(job), block, job.rows);
        job.tie_counts[block] = 0;
      }
      if (is_set(flagged, b)) {
        group.fetch_or(job.flags()[block / 64], uint64_t{1} << (block % 64));
        group.fetch_add(job.counts->non_finite_blocks, uint64_t{1});
      }
    });
  }

  // Finds the threshold's first digit, unless too few elements reached the bound. The last group calls it.
  template <typename Group>
  ISTHMUS_DEVICE void finish(Group& group, uint32_t bound, DigitChoice& choice) const {
    if (bound > 1 && job.state->candidates < job.keep) {
      clear(group, job.state->counts[0], kMaxDigitValues);
      if (group.thread() == 0) {
        job.state->misled = 1;
      }
    } else {
      finish_digit(group, job, {0, job.keep, 1}, 0, choice);
    }
  }
};

}  // namespace isthmus::kernels::ISTHMUS_KERNEL_NAMESPACE
