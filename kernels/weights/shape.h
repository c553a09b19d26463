// How passes see a shard of weights, and what encoding and decoding share.
#pragma once

#include "kernels/block/group.h"
#include "kernels/block/hashes.h"
#include "kernels/weights/job.h"
#include "kernels/weights/layout.h"

namespace isthmus::kernels::ISTHMUS_KERNEL_NAMESPACE {

// Threads of a group that codes: 8 teams. There are few blocks, and each takes long.
inline constexpr int kWeightThreads = 128;

// Replaces a WeightFormat for types that are not coded.
struct UncodedWeights {
  using Bits = uint8_t;
};
template <typename Format>
inline constexpr bool kIsCoded = true;
template <>
inline constexpr bool kIsCoded<UncodedWeights> = false;

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
inline WeightShape weight_shape(ConstBuffer shard) {
  return {shard.num_elements, shard.num_elements == 0 ? 1 : shard.bytes() / shard.num_elements};
}

// The elements of some steps that the lanes of one thread take.
template <typename Bits, int kSteps, int kOwn>
struct WeightSteps {
  Bits bits[kSteps][kOwn];

  // Loads from step `first` on. Elements past `count` are +0.
  template <typename Team>
  ISTHMUS_DEVICE void load(const Team& team, const Bits* group, int first, int count) {
    ISTHMUS_UNROLL
    for (int step = 0; step < kSteps; ++step) {
      for (int own = 0; own < kOwn; ++own) {
        const int index = (first + step) * kWeightLanes + team.lane(own);
        bits[step][own] = index < count ? group[index] : Bits{0};
      }
    }
  }
};

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
