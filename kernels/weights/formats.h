// What passes over weights share: types of weights, and checksums.
#pragma once

#include <cstdint>

#include "kernels/block/hashes.h"
#include "kernels/block/passes.h"
#include "kernels/weights/job.h"
#include "kernels/weights/layout.h"

namespace isthmus::kernels::ISTHMUS_KERNEL_NAMESPACE {

// Threads of a group, which has a block at a time: a word each.
inline constexpr int kWeightThreads = kWeightBlockWords;
// Without more registers than this many groups of a multiprocessor have.
inline constexpr int kResidentWeightGroups = 4;

// Replaces a WeightFormat for types that are not coded.
struct UncodedWeights {
  using Bits = uint8_t;
};
template <typename Format>
inline constexpr bool kIsCoded = true;
template <>
inline constexpr bool kIsCoded<UncodedWeights> = false;

// The memory of a group.
template <typename Format>
constexpr int64_t bytes_of_masks() {
  if constexpr (kIsCoded<Format>) {
    return sizeof(WeightMasks<Format>);
  } else {
    return 0;
  }
}

// Calls visit(Format{}) with the format of a type.
template <typename Visit>
void with_weight_format(DataType dtype, Visit visit) {
  switch (dtype) {
    case DataType::kBFloat16:
      return visit(BFloat16Weights{});
    case DataType::kFloat16:
      return visit(Float16Weights{});
    case DataType::kFloat32:
      return visit(Float32Weights{});
    case DataType::kFloat64:
    case DataType::kByte:
      return visit(UncodedWeights{});
  }
}

// A checksum that is never 0, which stands for none.
ISTHMUS_DEVICE uint64_t weight_checksum(uint64_t sum) { return sum == 0 ? 1 : sum; }

// The checksum that WeightHeader::seal() sets.
ISTHMUS_DEVICE uint32_t checksum_of_weight_header(WeightHeaderWords header) {
  header.word[kWeightGather] &= (uint64_t{1} << kWeightUpperHalf) - 1;
  uint64_t sum = 0;
  for (int64_t i = 0; i < kWeightHeaderWords; ++i) {
    sum += checksum_of_word(header.word[i], i);
  }
  return static_cast<uint32_t>(mix(weight_checksum(sum)));
}

}  // namespace isthmus::kernels::ISTHMUS_KERNEL_NAMESPACE
