// The code of weight differences: how a shard is cut, and what a block of it becomes. docs/weights.md describes the
// code, its source and what it costs; docs/packet_format.md the bytes.
#pragma once

#include <cstddef>
#include <cstdint>

#include "isthmus/buffer.h"
#include "kernels/block/host_device.h"
#include "kernels/block/instruction_set.h"

namespace isthmus::kernels {

inline constexpr int64_t kWeightHeaderBytes = 64;  // before a packet
inline constexpr int kWeightWordElements = 64;     // neighbours that share the words of masks
inline constexpr int kWeightBlockWords = 256;
inline constexpr int64_t kWeightBlockElements = int64_t{kWeightWordElements} * kWeightBlockWords;
// An element's class: so many lower bits of its old exponent, or fewer of these, the upper ones.
inline constexpr int kWeightClassBits = 4;

// A floating-point type as bits: sign, exponent, mantissa.
template <typename BitsType, int mantissa_bits>
struct WeightFormat {
  using Bits = BitsType;
  static constexpr int kBits = 8 * sizeof(Bits);
  static constexpr int kMantissaBits = mantissa_bits;
};
using BFloat16Weights = WeightFormat<uint16_t, 7>;
using Float16Weights = WeightFormat<uint16_t, 10>;
using Float32Weights = WeightFormat<uint32_t, 23>;

// What encoding or decoding of a block keeps, a bit for each element. Contents do not matter between blocks.
template <typename Format>
struct WeightMasks {
  uint64_t exponent[kWeightClassBits][kWeightBlockWords];  // lower bits of old exponents
  uint64_t level[Format::kBits][kWeightBlockWords];        // whether the distance has more than so many bits
  uint64_t members[kWeightBlockWords];                     // whose bits a string has, of words that have some
  uint16_t places[kWeightBlockWords];                      // of these words
  uint64_t string[kWeightBlockWords + 2];                  // a string that is sent as gaps
};

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

// What the CPU works in: about 140 KiB. Contents do not matter between calls.
struct WeightScratch {
  alignas(64) std::byte masks[sizeof(WeightMasks<Float32Weights>)];  // of any format
  uint64_t coded[kWeightBlockElements * sizeof(float) / sizeof(uint64_t)];
};

// The loops for one type of weights. Blocks have 1 to kWeightBlockElements elements.
struct WeightKernels {
  // Writes to `out` what turns `old_weights` into `new_weights`, bit for bit, and returns its bytes. `out` has room for
  // the elements' bytes. 0: they are equal. As many bytes as the elements: the new weights themselves.
  int64_t (*encode)(const void* old_weights, const void* new_weights, int64_t count, void* out, WeightScratch& scratch);
  // Turns the old weights into the new ones. The words of 8 bytes that `block` lies in, and the next, may be read.
  // False: no encoder makes such a block, and the weights are undefined.
  bool (*decode)(const void* block, int64_t bytes, void* weights, int64_t count, WeightScratch& scratch);
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
