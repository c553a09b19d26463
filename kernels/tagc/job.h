// One encoding or decoding of codec `tagc` on a device, and the memory that it works on between its passes.
#pragma once

#include <cstdint>

#include "kernels/block/job.h"
#include "kernels/tagc/layout.h"

namespace isthmus::kernels {

inline constexpr int64_t kMaxDeviceElements = 0xffffffff;  // of a piece, because counts have 32 bits

// The exact threshold is found digit by digit, from the top of a magnitude's 31 bits.
inline constexpr int kNumDigits = 3;
inline constexpr uint32_t kMaxDigitValues = 2048;
inline constexpr int64_t kMaxSampleRuns = 1024;

// The threshold's first digits: `prefix`, and how many elements that begin with it stay.
struct PartialThreshold {
  uint32_t prefix;
  uint32_t wanted;
  uint32_t found;  // 0: everything that was counted stays
};

// If too many elements equal the threshold, these stay: those in words of the index before `word`, and the first
// `may_stay` in it.
struct TieCut {
  int64_t word;
  uint32_t may_stay;
};

// The state of one encoding, which its first pass zeroes except for `bound`.
struct SelectState {
  uint32_t bound;       // candidates are the magnitudes that reach it; at least 1
  uint32_t candidates;  // how many magnitudes reach the bound
  uint32_t misled;      // 1: fewer reach it than are to be kept
  uint32_t rounds;      // that peeling took
  uint32_t arrived;     // groups that reached the end of the running pass
  uint32_t spare_ties;  // 1: `cut` says which elements equal to the threshold stay
  PartialThreshold threshold;
  TieCut cut;
  uint32_t counts[kNumDigits][kMaxDigitValues];  // how many candidates have a digit, and those before it
};

// One group peels eight columns of the sketch: a byte of marks for each block, and 32 bytes of values.
inline constexpr int64_t kSlabColumns = 8;
ISTHMUS_DEVICE int64_t num_slabs(const TagcShape& shape) { return shape.block_elements / kSlabColumns; }

// Degrees of a slab's cells take two bytes a row. They are in shared memory for up to 40,960 rows, else in scratch
// memory. With what else the passes need this is below the 99 KB that GPUs of sm_86 and sm_89 have.
inline constexpr int64_t kMaxSharedTableBytes = int64_t{80} * 1024;
ISTHMUS_DEVICE int64_t table_words(const TagcShape& shape) { return (shape.num_rows + 1) / 2; }
ISTHMUS_DEVICE int64_t table_bytes(const TagcShape& shape) { return 4 * table_words(shape); }
ISTHMUS_DEVICE bool tables_fit_shared(const TagcShape& shape) { return table_bytes(shape) <= kMaxSharedTableBytes; }

// The index becomes keys of slabs in tiles of as many blocks as have 256 words, and at least 32.
ISTHMUS_DEVICE int64_t tile_blocks(const TagcShape& shape) {
  return shape.block_elements >= 256 ? 32 : 8192 / shape.block_elements;
}
ISTHMUS_DEVICE int64_t num_tiles(const TagcShape& shape) {
  return (shape.num_blocks + tile_blocks(shape) - 1) / tile_blocks(shape);
}

// Words of 4 blocks that a slab's keys take.
ISTHMUS_DEVICE int64_t slab_words(const TagcShape& shape) { return num_tiles(shape) * tile_blocks(shape) / 4; }

// Scratch memory for peeling, of sender and receiver, with a part for each slab.
struct SlabScratch {
  uint32_t* keys;    // slabs x slab_words: a byte a block, those that did not peel yet
  uint32_t* left;    // slabs: 1 where some keys did not peel
  uint32_t* tables;  // slabs x table_words; null where they fit into shared memory
};

ISTHMUS_DEVICE uint32_t found_fault(FaultKind kind) { return 1U << static_cast<uint32_t>(kind); }

// The context of an encoding.
ISTHMUS_DEVICE DeviceContext context_of(const EncodeJobBase& job) {
  return job.context != nullptr ? *job.context
                                : DeviceContext{job.header.word[kHeaderUnit], job.header.word[kHeaderStep]};
}

// The piece is float32, or a 16-bit type that it has been summed in. There is always a residual. The packet is 64-byte
// aligned.
struct TagcEncodeJob : EncodeJobBase {
  TagcShape shape;
  TagcLayout layout;
  uint32_t keep;
  uint32_t sample_runs;  // the bound is guessed from so many runs of neighbours...
  uint32_t sample_keep;  // ...as the magnitude that this many of them reach
  int64_t max_rounds;

  SelectState* state;
  uint32_t* tie_counts;  // num_blocks: how many elements equal the threshold
  uint32_t* rows;        // 4 x num_blocks, 16-byte aligned: a RowTable
  SlabScratch slabs;

  // The packet's.
  ISTHMUS_DEVICE uint64_t* flags() const { return reinterpret_cast<uint64_t*>(packet + layout.flags); }
  ISTHMUS_DEVICE uint32_t* index() const { return reinterpret_cast<uint32_t*>(packet + layout.index); }

  ISTHMUS_DEVICE void go_to(int64_t i) {
    EncodeJobBase::go_to(i);
    move(state, i);
    move(tie_counts, i);
    move(rows, i);
    move(slabs.keys, i);
    move(slabs.left, i);
    move(slabs.tables, i);
  }
};

// Values are added up in `sum`. `own` and `out` are float32 or a 16-bit type. Packets are 64-byte aligned.
struct TagcDecodeJob : DecodeJobBase {
  TagcShape shape;
  TagcLayout layout;
  int64_t max_rounds;

  uint32_t* found;    // what is wrong with each packet, beside header and checksum: bits of found_fault()
  uint32_t* rows;     // 4 x num_blocks, 16-byte aligned: a RowTable
  uint32_t* cells;    // of packets that are peeled at once: slab after slab, row after row
  SlabScratch slabs;  // keys: for each packet; tables: for each that is peeled at once
};

// Encodes chunks for a single tier: as pieces of which nothing is held back, whose values are summed in float32 cells.
// `packet` is an image of flags and index in scratch memory, which ends there.
struct TagcFlatEncodeJob : TagcEncodeJob {
  uint32_t* wire_index = nullptr;  // what is merged
  float* cells = nullptr;          // num_cells

  ISTHMUS_DEVICE void go_to(int64_t i) {
    TagcEncodeJob::go_to(i);
    wire_index += i * 2 * shape.index_words();
    cells += i * shape.num_cells();
  }
};

// Adds another rank's index.
struct TagcFlatMergeJob {
  const uint64_t* arrived;
  uint64_t* index;
  int64_t num_words;
};

// Peels the merged index and the summed sketch of one shard.
struct TagcFlatDecodeJob {
  TagcShape shape;
  DeviceContext context;
  int64_t max_rounds;
  const uint32_t* wire_index;
  float* cells;
  float* out;  // num_elements
  DeviceCounts* counts;

  uint32_t* rows;  // 4 x num_blocks, 16-byte aligned: a RowTable
  SlabScratch slabs;
  uint32_t* keys_before;  // as slabs.keys: at the beginning of a round
};

}  // namespace isthmus::kernels
