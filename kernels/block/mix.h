// The mixing function of 64 bits, the same on every executor.
#pragma once

#include <cstdint>

#include "kernels/block/host_device.h"

namespace isthmus::kernels {

// A bijection in which every bit of the result depends on every bit of x: the finaliser of splitmix64. Always inlined,
// because every instruction set compiles it and the linker must not merge the copies.
[[gnu::always_inline]] ISTHMUS_DEVICE uint64_t mix(uint64_t x) {
  x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9;
  x = (x ^ (x >> 27)) * 0x94d049bb133111eb;
  return x ^ (x >> 31);
}

}  // namespace isthmus::kernels
