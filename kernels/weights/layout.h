// The code of weight differences: how a shard is cut, and what a block of it becomes. docs/weights.md describes the
// code, its source and what it costs; docs/packet_format.md the bytes.
#pragma once

#include <array>
#include <cstdint>

#include "isthmus/buffer.h"
#include "kernels/block/host_device.h"
#include "kernels/block/instruction_set.h"

namespace isthmus::kernels {

inline constexpr int kWeightLanes = 16;                 // element i of a block belongs to lane i mod 16
inline constexpr int64_t kWeightBlockElements = 16384;  // 1024 a lane: a lane's state costs about 26 bits
inline constexpr int64_t kWeightGroupElements = 1024;   // neighbours that share one estimate of how far they moved
inline constexpr int64_t kWeightGroups = kWeightBlockElements / kWeightGroupElements;

// Symbols: 32 tokens under one of 16 laws, each a row of frequencies that sum up to 1024 (laws.h).
inline constexpr int kWeightLaws = 16;
inline constexpr int kWeightTokens = 32;
inline constexpr int kWeightEscape = 31;    // the token of an element whose new pattern is sent as it is
inline constexpr int kWeightNoChange = 15;  // the token of an element that did not move, in a law of small steps
inline constexpr int kWeightSlotBits = 10;
inline constexpr int kWeightSlots = 1 << kWeightSlotBits;

// States of the coder lie in [2^10, 2^26). What exceeds that is sent in words of 16 bits.
inline constexpr uint32_t kWeightLeastState = 1U << kWeightSlotBits;
inline constexpr int kWeightWordBits = 16;
// In a step a lane sends at most one word for its token, and one for each kWeightPlainBits plain bits.
inline constexpr int kWeightPlainBits = 10;

// A floating-point type as bits: sign, exponent, mantissa.
template <typename BitsType, int mantissa_bits>
struct WeightFormat {
  using Bits = BitsType;
  static constexpr int kBits = 8 * sizeof(Bits);
  static constexpr int kMantissaBits = mantissa_bits;
  static constexpr int kExponentBits = kBits - 1 - mantissa_bits;
  static constexpr int kBias = (1 << (kExponentBits - 1)) - 1;
  static constexpr int kPlainStages = (mantissa_bits + kWeightPlainBits - 1) / kWeightPlainBits;
  // The most words of a block.
  static constexpr int64_t kMostWords = kWeightBlockElements * (1 + kPlainStages) + kWeightLanes;
};
using BFloat16Weights = WeightFormat<uint16_t, 7>;
using Float16Weights = WeightFormat<uint16_t, 10>;
using Float32Weights = WeightFormat<uint32_t, 23>;

// Begins a coded block; words, then indices and patterns of escapes follow.
struct WeightBlockHeader {
  std::array<int8_t, kWeightGroups> moved;    // log2 of the mean |new - old| of each group, rounded
  std::array<uint16_t, kWeightLanes> states;  // of the lanes, at the start of decoding
  uint16_t num_escapes = 0;
};
static_assert(sizeof(WeightBlockHeader) == 50);

// How a shard is cut into blocks, of which the last may have fewer elements. A packet begins with a directory of the
// blocks' bytes.
struct WeightShape {
  int64_t num_elements;
  int64_t element_bytes;

  ISTHMUS_DEVICE int64_t num_blocks() const { return (num_elements + kWeightBlockElements - 1) / kWeightBlockElements; }
  ISTHMUS_DEVICE int64_t directory_bytes() const { return num_blocks() * static_cast<int64_t>(sizeof(uint32_t)); }
  ISTHMUS_DEVICE int64_t elements_of(int64_t block) const {
    const int64_t left = num_elements - block * kWeightBlockElements;
    return left < kWeightBlockElements ? left : kWeightBlockElements;
  }
  ISTHMUS_DEVICE int64_t bytes_of(int64_t block) const { return elements_of(block) * element_bytes; }
  ISTHMUS_DEVICE int64_t begin_of(int64_t block) const { return block * kWeightBlockElements * element_bytes; }
  ISTHMUS_DEVICE int64_t bytes() const { return num_elements * element_bytes; }
};
inline WeightShape weight_shape(ConstBuffer shard) { return {shard.num_elements, element_bytes(shard.dtype)}; }

// What is written of a block before its size is known: about 160 KiB. Contents do not matter between calls.
struct WeightScratch {
  std::array<uint16_t, Float32Weights::kMostWords + 8> words;  // eight more: a vector is stored at once
  std::array<uint16_t, kWeightBlockElements> escapes;
};

// The loops for one type of weights. Blocks have 1 to kWeightBlockElements elements.
struct WeightKernels {
  // Writes to `out` what turns `old_weights` into `new_weights`, bit for bit, and returns its bytes. `out` has room for
  // the elements' bytes. 0: they are equal. As many bytes as the elements: the new weights themselves.
  int64_t (*encode)(const void* old_weights, const void* new_weights, int64_t count, void* out, WeightScratch& scratch);
  // Turns the old weights into the new ones. `block` begins at an even address, and 128 bytes behind it may be read.
  // False: no encoder makes such a block, and the weights are undefined.
  bool (*decode)(const void* block, int64_t bytes, void* weights, int64_t count);
};

struct WeightKernelTable {
  WeightKernels bfloat16;
  WeightKernels float16;
  WeightKernels float32;
};
const WeightKernelTable& weight_kernels_of(baseline::Instructions set);
const WeightKernelTable& weight_kernels_of(avx2::Instructions set);
const WeightKernelTable& weight_kernels_of(avx512::Instructions set);

// Those for the instruction set in use. dtype: bfloat16, float16 or float32.
const WeightKernels& weight_kernels(DataType dtype);

}  // namespace isthmus::kernels
