// One encoding or decoding of codec `tagc` on a device: shapes and the memory that it works on. Everything here is
// known to the host before the data is: sizes follow from the shape alone, and nothing is allocated on the way.
#pragma once

#include <cstdint>

#include "isthmus/buffer.h"
#include "kernels/device.h"
#include "kernels/tagc.h"

namespace isthmus::kernels {

inline constexpr int64_t kMaxDeviceElements = 0xffffffff;  // of a piece: counts have 32 bits

// The exact threshold is found digit by digit, from the top of a magnitude's 31 bits.
inline constexpr int kNumDigits = 3;
inline constexpr uint32_t kMaxDigitValues = 2048;

// State of one encoding; zero at its beginning.
struct SelectState {
  uint32_t bound;                                // candidates are the magnitudes that reach it
  uint32_t candidates;                           // how many do
  uint32_t rounds;                               // that peeling all took
  uint32_t counts[kNumDigits][kMaxDigitValues];  // how many candidates have a digit, and those before it
  uint32_t counts_of_all[kMaxDigitValues];       // the first of these, where the bound was too high
  uint64_t checksum;
};

// Degrees of the cells of 32 columns: two words a row. Those of up to 16384 rows are in shared memory, those of more in
// scratch memory.
inline constexpr int64_t kMaxSharedTableBytes = int64_t{128} * 1024;
ISTHMUS_DEVICE int64_t table_bytes(const TagcShape& shape) { return 8 * shape.num_rows; }
ISTHMUS_DEVICE bool tables_fit_shared(const TagcShape& shape) { return table_bytes(shape) <= kMaxSharedTableBytes; }

// Of peeling, both ways. Columns are words of 32 of the sketch's columns; each has a part of its own.
struct ColumnScratch {
  uint32_t* keys;        // columns x num_blocks: those that did not peel yet
  uint32_t* active;      // columns x num_blocks: blocks that hold some
  uint32_t* num_active;  // columns
  uint32_t* tables;      // columns x 2 num_rows; null where they fit into shared memory
};

// Draws the blocks' rows; as tagc_seed() on the host.
ISTHMUS_DEVICE uint64_t seed_of(const DeviceContext& context) {
  constexpr uint64_t kOdd = 0xd1342543de82ef95;
  return context.unit_hash ^ (context.step + 1) * kOdd;
}

struct TagcEncodeJob {
  TagcShape shape;
  TagcLayout layout;
  HeaderWords header;  // all but unit, step and checksum
  uint32_t keep;
  uint32_t sample_runs;  // the bound is guessed from so many runs of neighbours...
  uint32_t sample_keep;  // ...as the magnitude that so many of them reach
  int64_t max_rounds;

  const DeviceContext* context;
  ConstBuffer piece;  // float32, or a 16-bit type that it has been summed in
  float* residual;
  uint8_t* packet;  // 64-byte aligned
  DeviceCounts* counts;

  SelectState* state;
  uint32_t* tie_counts;   // num_blocks: elements that equal the threshold; zero at the beginning, lies behind `state`
  uint32_t* tie_offsets;  // num_blocks: how many of them are in the blocks before
  uint32_t* samples;
  BlockRows* rows;
  ColumnScratch columns;
};

struct TagcDecodeJob {
  TagcShape shape;
  TagcLayout layout;
  HeaderWords header;
  int64_t max_rounds;

  const DeviceContext* context;
  const uint8_t* packets;  // one after another, 64-byte aligned
  int64_t num_packets;
  float* out;
  DeviceFault* fault;

  DecodeState* state;
  uint64_t* checksums;  // num_packets; zero at the beginning, lies behind `state`
  BlockRows* rows;
  uint32_t* cells;
  ColumnScratch columns;
};

}  // namespace isthmus::kernels
