// The steps on 64 neighbouring elements for which instruction sets have something better than a plain loop.
#pragma once

#include "kernels/tagc/block.h"

namespace isthmus::kernels::ISTHMUS_KERNEL_NAMESPACE {

// residual += piece for 64 elements; bit i of the result: |residual[i]| is at least `bound`, as bit patterns.
inline uint64_t add_and_mark_64(const float* __restrict piece, float* __restrict residual, uint32_t bound) {
  const int32_t signed_bound = static_cast<int32_t>(bound);  // magnitudes have no sign bit
  uint8_t reached[64];
  for (int i = 0; i < 64; ++i) {
    residual[i] += piece[i];
    reached[i] = static_cast<int32_t>(magnitude(residual[i])) >= signed_bound;
  }
  uint64_t marked = 0;
  for (int64_t byte = 0; byte < 8; ++byte) {  // eight bytes of 0 or 1 become eight bits
    uint64_t eight;
    __builtin_memcpy(&eight, reached + 8 * byte, sizeof(eight));
    marked |= (eight * 0x0102040810204080) >> 56 << (8 * byte);
  }
  return marked;
}

}  // namespace isthmus::kernels::ISTHMUS_KERNEL_NAMESPACE
