// The steps of codec `tagc`, as functions of raw memory. The algorithm is described in docs/tagc.md, the layout of
// flags, index and sketch in docs/packet_format.md.
#pragma once

#include <cstdint>

#include "kernels/block/hashes.h"
#include "kernels/block/host_device.h"
#include "kernels/block/instruction_set.h"

namespace isthmus::kernels {

inline constexpr int64_t kMinBlockElements = 64;
inline constexpr int64_t kMaxBlockElements = 4096;

// How a piece is cut. Elements past num_elements in the last block count as zeros.
struct TagcShape {
  int64_t num_elements = 0;
  int64_t block_elements =
      kMinBlockElements;   // a power of two in the range above; also the number of the sketch's columns
  int64_t num_blocks = 0;  // num_elements / block_elements, rounded up
  int64_t num_rows = 0;    // of the sketch: at least 3, or 0 if there are no blocks; below 2^32

  // Always inlined: every instruction set compiles these, and the linker must not choose between them.
  [[gnu::always_inline]] ISTHMUS_DEVICE int64_t block_words() const { return block_elements / 64; }
  [[gnu::always_inline]] ISTHMUS_DEVICE int64_t flag_words() const { return (num_blocks + 63) / 64; }
  [[gnu::always_inline]] ISTHMUS_DEVICE int64_t index_words() const { return num_blocks * block_words(); }
  [[gnu::always_inline]] ISTHMUS_DEVICE int64_t num_cells() const { return num_rows * block_elements; }
  [[gnu::always_inline]] ISTHMUS_DEVICE int64_t sketch_bytes() const { return num_cells() * 4; }
};

// Where a packet's sections begin, in bytes, and where it ends. See docs/packet_format.md.
struct TagcLayout {
  int64_t flags;
  int64_t index;
  int64_t sketch;
  int64_t end;
};

// The block whose elements take precedence in a step if not all can be sent. A stride near the golden ratio visits all
// parts of the piece within a few steps. Always inlined, as TagcShape's members are.
[[gnu::always_inline]] ISTHMUS_DEVICE int64_t tagc_first_block(int64_t num_blocks, uint64_t step) {
  constexpr uint64_t kStride = 0x9e3779b9;
  const uint64_t place = (step * kStride) & 0xffffffff;
  return static_cast<int64_t>(place * static_cast<uint64_t>(num_blocks) >> 32);
}

// Where a block's elements go in the sketch: three different rows, each with a sign (for sums only).
struct BlockRows {
  uint32_t row[3];
  uint32_t negative;  // bit i: values enter row[i] negated
};

struct Selection {
  int64_t kept_elements = 0;      // in blocks that are not flagged
  int64_t non_finite_blocks = 0;  // flagged
  uint32_t largest = 0;           // magnitude in blocks that are not flagged, by its bits
};

struct PeelResult {
  int64_t peeled_elements = 0;
  int64_t left_elements = 0;
  int64_t rounds = 0;  // rounds in which something peeled
};

// Scratch memory for peeling. Contents before and after do not matter, except for `remaining`.
struct PeelScratch {
  uint64_t* remaining;  // index_words: in: the keys, flagged blocks cleared; out: those that did not peel
  uint64_t* once;       // num_rows * block_words: cells that hold one key or more
  uint64_t* twice;      // num_rows * block_words: cells that hold two keys or more
  uint32_t* active;     // num_blocks: blocks with keys remaining
};

// Pointers are to memory of `shape`'s sizes unless said otherwise, and none overlap.
struct TagcKernels {
  void (*hash_blocks)(const TagcShape& shape, uint64_t seed, BlockRows* rows);

  // Guesses from a sample a magnitude, at least 1, that probably a little more than `keep` elements of piece + residual
  // reach. candidates: scratch memory of selection_capacity().
  uint32_t (*sample_bound)(const TagcShape& shape, int64_t keep, const float* piece, const float* residual,
                           uint32_t* candidates);

  // residual = piece + residual, but for blocks in which a sum is NaN or Inf: those get their bit in `flags` and stay.
  // index = the `keep` largest magnitudes of the other blocks (fewer if fewer are not zero; among equals the first),
  // and in flagged blocks the elements that are not finite. flags and index are overwritten. The result does not depend
  // on `bound` (at least 1), which decides how fast it is found.
  Selection (*select)(const TagcShape& shape, int64_t keep, uint32_t bound, const float* piece, float* residual,
                      uint64_t* flags, uint64_t* index, uint32_t* candidates);

  // Removes from `index` some of the keys in scratch.remaining (all are there at first), so that the rest peels in at
  // most max_rounds rounds. At least one key stays if there is one. Where keys compete, `first_block` and the blocks
  // after it, cyclically, take precedence. scratch.remaining is unspecified afterwards.
  PeelResult (*hold_back)(const TagcShape& shape, const BlockRows* rows, int64_t max_rounds, int64_t first_block,
                          uint64_t* index, PeelScratch scratch);

  // Moves the values that `index` marks from the residual to the sketch, by XOR of their bits; the residual becomes
  // zero there. Flagged blocks are skipped.
  void (*insert_xor)(const TagcShape& shape, const BlockRows* rows, const uint64_t* flags, const uint64_t* index,
                     float* residual, uint32_t* cells);

  // Adds the marked values to the sketch with their signs, in ascending order of blocks; the residual becomes zero
  // there. Marked elements of flagged blocks enter as NaN.
  void (*insert_sum)(const TagcShape& shape, const BlockRows* rows, const uint64_t* flags, const uint64_t* index,
                     float* residual, float* cells);

  // Peels keys with values: out[i] += value, and the value leaves the cells. out has num_elements.
  PeelResult (*peel_xor)(const TagcShape& shape, const BlockRows* rows, int64_t max_rounds, PeelScratch scratch,
                         uint32_t* cells, float* out);

  // Peels signed sums in float32: out[i] = value for what peeled.
  PeelResult (*peel_sum)(const TagcShape& shape, const BlockRows* rows, int64_t max_rounds, PeelScratch scratch,
                         float* cells, float* out);

  // What is wrong with a packet between header and sketch: the FaultKind's bits; 0: no mark leads outside the piece.
  uint32_t (*find_faults)(const TagcShape& shape, const TagcLayout& layout, const uint8_t* packet);

  // out[i] = median of the three cells of i, with their signs (NaN if one is NaN), for the keys in `remaining`.
  void (*estimate)(const TagcShape& shape, const BlockRows* rows, const uint64_t* remaining, const float* cells,
                   float* out);
};

// A sample that guesses a lower bound of the threshold: runs of neighbours (a cache line), one from each of equal
// stretches, at varying places that follow no period of the data. The guess decides speed, never the result.
struct TagcSample {
  static constexpr int64_t kRun = 16;

  int64_t runs = 0;
  int64_t keep = 0;  // the bound is the magnitude that so many of the sample reach

  // A sixteenth of the piece, but 64 to `most_runs` runs. The bound allows six standard deviations above the expected
  // number of kept elements, because neighbours are alike.
  [[gnu::always_inline]] TagcSample(const TagcShape& shape, int64_t keep_of_piece, int64_t most_runs) {
    const int64_t total = shape.num_elements / kRun;
    const int64_t wanted = total / 16 < 64 ? 64 : total / 16 > most_runs ? most_runs : total / 16;
    runs = wanted < total ? wanted : total;
    if (runs > 0) {
      const double expected = static_cast<double>(kRun * runs) * static_cast<double>(keep_of_piece) /
                              static_cast<double>(shape.num_elements);
      keep = static_cast<int64_t>(expected + 6 * __builtin_sqrt(expected) + 8);
    }
  }

  // The first element of a run, of so many.
  [[gnu::always_inline]] static ISTHMUS_DEVICE int64_t first_of(const TagcShape& shape, int64_t runs, int64_t run) {
    const int64_t stretch = shape.num_elements / kRun / runs;
    return kRun * (run * stretch + static_cast<int64_t>((mix(run) >> 32) * static_cast<uint64_t>(stretch) >> 32));
  }
};

// Elements of `candidates` that select() needs. Always inlined, as mix() is.
[[gnu::always_inline]] inline int64_t selection_capacity(const TagcShape& shape, int64_t keep) {
  constexpr int64_t kSampleElements = 65536;  // the least that sample_bound() needs
  const int64_t wanted = keep + keep / 4 + kSampleElements;
  return wanted < shape.num_elements ? wanted : shape.num_elements;
}

// The loops for each instruction set that was compiled, and for the one in use.
const TagcKernels& tagc_kernels_of(baseline::Instructions set);
const TagcKernels& tagc_kernels_of(avx2::Instructions set);
const TagcKernels& tagc_kernels_of(avx512::Instructions set);
const TagcKernels& tagc_kernels();

}  // namespace isthmus::kernels
