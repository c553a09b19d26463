// When a residual is dropped: a step's values were far larger than those of the steps before. Such a step is thrown
// away by most programs, and its residual would come in the next one. See docs/algorithms.md, "Steps that are thrown
// away".
#pragma once

#include <cstdint>

#include "isthmus/device_context.h"
#include "kernels/block/host_device.h"

namespace isthmus::kernels {

using isthmus::ResidualGuard;

// 64 times as large is a spike. What is usual becomes at most 16 times as large in a step, so that a second spike is
// one, too; and half in no less than 32 steps, so that a unit that rests for a while does not begin with one.
inline constexpr uint32_t kLevels = 32;  // to a power of two
inline constexpr uint32_t kSpike = 6 * kLevels;
inline constexpr uint32_t kMostRise = 4 * kLevels;
inline constexpr uint32_t kMostFall = 1;

// The level of the largest magnitude, by its bits.
[[gnu::always_inline]] ISTHMUS_DEVICE uint32_t level_of_magnitude(uint32_t bits) {
  return bits == 0 ? 0 : kLevels * ((bits >> 23) + 1);
}

// The level of a sum of squares, which were first multiplied by the square of `factor`, a power of two.
[[gnu::always_inline]] ISTHMUS_DEVICE uint32_t level_of_squares(uint32_t bits, uint32_t bits_of_factor) {
  constexpr uint32_t kOffset = 2 * 254 + 1;  // keeps the level above 0
  return bits == 0 ? 0 : kLevels / 2 * ((bits >> 23) + kOffset - 2 * (bits_of_factor >> 23));
}

[[gnu::always_inline]] ISTHMUS_DEVICE bool is_spike(const ResidualGuard& guard) {
  return guard.usual != 0 && guard.largest > guard.usual + kSpike;
}

// Begins the next step.
[[gnu::always_inline]] ISTHMUS_DEVICE void next_step(ResidualGuard& guard) {
  if (guard.usual == 0) {
    guard.usual = guard.largest;
  } else if (guard.largest != 0) {
    const uint32_t least = guard.usual > kMostFall ? guard.usual - kMostFall : 1;
    const uint32_t most = guard.usual + kMostRise;
    guard.usual = guard.largest < least ? least : guard.largest > most ? most : guard.largest;
  }
  guard.largest = 0;
}

}  // namespace isthmus::kernels
