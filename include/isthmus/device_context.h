// Words that change from step to step, in memory of the device that codes: a captured graph needs no new arguments.
#pragma once

#include <cstdint>

namespace isthmus {

// Identifies packets by two members of PacketContext. It is in device memory, so that a captured graph needs no new
// arguments: `step` is counted there.
struct DeviceContext {
  uint64_t unit_hash = 0;
  uint64_t step = 0;
};

// How large the values were that became packets, with their residual, by levels: multiples of a binary exponent, above
// 0, which stands for zeros. See kernels/block/magnitudes.h.
struct Magnitudes {
  uint32_t largest = 0;  // in this step
  uint32_t usual = 0;    // in steps before; 0: there was none
  uint32_t arrived = 0;  // groups of threads that reached the end of a pass
};

}  // namespace isthmus
