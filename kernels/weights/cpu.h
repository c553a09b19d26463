// Weight differences on the CPU: a block at a time.
#pragma once

#include <array>
#include <cstdint>

#include "isthmus/buffer.h"
#include "kernels/block/instruction_set.h"
#include "kernels/weights/layout.h"

namespace isthmus::kernels {

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
inline const WeightKernels& weight_kernels(DataType dtype) {
  const auto& table = with_instruction_set([](auto set) -> const WeightKernelTable& { return weight_kernels_of(set); });
  return dtype == DataType::kFloat16 ? table.float16 : dtype == DataType::kBFloat16 ? table.bfloat16 : table.float32;
}

}  // namespace isthmus::kernels
