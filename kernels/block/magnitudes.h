// When a residual is dropped: a step's values were far larger than those of the steps before. Such a step is thrown
// away by most programs, and its residual would come in the next one. See docs/algorithms.md, "Units".
#pragma once

#include <cstdint>

#include "isthmus/device_context.h"
#include "kernels/block/host_device.h"

namespace isthmus::kernels {

using isthmus::Magnitudes;

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

[[gnu::always_inline]] ISTHMUS_DEVICE bool is_spike(const Magnitudes& magnitudes) {
  return magnitudes.usual != 0 && magnitudes.largest > magnitudes.usual + kSpike;
}

// Begins the next step.
[[gnu::always_inline]] ISTHMUS_DEVICE void next_step(Magnitudes& magnitudes) {
  if (magnitudes.usual == 0) {
    magnitudes.usual = magnitudes.largest;
  } else if (magnitudes.largest != 0) {
    const uint32_t least = magnitudes.usual > kMostFall ? magnitudes.usual - kMostFall : 1;
    const uint32_t most = magnitudes.usual + kMostRise;
    magnitudes.usual = magnitudes.largest < least ? least : magnitudes.largest > most ? most : magnitudes.largest;
  }
  magnitudes.largest = 0;
}

}  // namespace isthmus::kernels
