// The steps of codec `quant`, as functions of raw memory. The algorithm is described in docs/quant.md, the layout in
// docs/packet_format.md.
#pragma once

#include <cstdint>

#include "kernels/block/hashes.h"
#include "kernels/block/host_device.h"
#include "kernels/block/instruction_set.h"

namespace isthmus::kernels {

// Codes are packed by blocks of 32 rows of 16 lanes, of which eight are a group with one scale.
inline constexpr int kQuantLanes = 16;
inline constexpr int kQuantRows = 32;
inline constexpr int kQuantBlockElements = kQuantLanes * kQuantRows;
inline constexpr int kQuantGroupRows = 8;
inline constexpr int kQuantGroupElements = kQuantLanes * kQuantGroupRows;
inline constexpr int kQuantGroups = kQuantRows / kQuantGroupRows;  // of a block

// How a piece is cut: into whole groups, in blocks of which the last may lack groups, and a tail of fewer elements than
// a group has, which is sent as it is.
struct QuantShape {
  int64_t num_elements = 0;
  int64_t num_groups = 0;
  int64_t num_blocks = 0;
  int64_t tail_elements = 0;
};

// Where a packet's sections begin, in bytes, and where it ends: multiples of 64. See docs/packet_format.md.
struct QuantLayout {
  int64_t scales;
  int64_t codes;
  int64_t tail;
  int64_t end;
};

// The seed of all random bits of a packet. It includes the sender, so that the errors of several nodes' packets, which
// are added up, are independent. Always inlined: every instruction set compiles it, and the linker must not merge the
// copies.
[[gnu::always_inline]] ISTHMUS_DEVICE uint64_t quant_seed(uint64_t unit_hash, uint64_t step, uint64_t segment,
                                                          uint64_t sender) {
  return mix(mix(seed_of_step(unit_hash, step)) + (segment | sender << 8));
}

// The CPU executor, for one instruction set. Blocks from `first_block` on, as many as `num_groups` groups fill: only
// the last may lack some. bits: of a code, 1 to 8. Pointers are to the first block's own: `scales`, one
// bfloat16 for each group, and `words`, kQuantLanes * bits for each block.
struct QuantKernels {
  // residual: null without error feedback; else it is added to the piece, and becomes the error of what is sent.
  // Returns how many groups hold NaN or Inf: their scale is NaN, and their residual is left as it was. With a residual,
  // `level` becomes that of the largest other group (magnitudes.h), if it was lower.
  int64_t (*encode)(int bits, uint64_t seed, int64_t first_block, int64_t num_groups, const float* piece,
                    float* residual, uint16_t* scales, uint32_t* words, uint32_t& level);

  // out = the packet's values, as if added to zeros.
  void (*decode)(int bits, uint64_t seed, int64_t first_block, int64_t num_groups, const uint16_t* scales,
                 const uint32_t* words, float* out);

  // out += the packet's values.
  void (*decode_add)(int bits, uint64_t seed, int64_t first_block, int64_t num_groups, const uint16_t* scales,
                     const uint32_t* words, float* out);
};

// The loops for each instruction set that was compiled, and for the one in use.
const QuantKernels& quant_kernels_of(baseline::Instructions set);
const QuantKernels& quant_kernels_of(avx2::Instructions set);
const QuantKernels& quant_kernels_of(avx512::Instructions set);
const QuantKernels& quant_kernels();

}  // namespace isthmus::kernels
