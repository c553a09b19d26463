// The laws, in the form in which encoder and decoder look them up.
#pragma once

#include <array>
#include <cstdint>

#include "kernels/block/host_device.h"
#include "kernels/weights/laws.h"

namespace isthmus::kernels {

// An entry for a law and a token: the frequency, and above it the first of its slots. A token that the law lacks is an
// escape, with the highest bit set.
inline constexpr int kWeightFirstSlotShift = 16;
inline constexpr uint32_t kWeightIsEscape = 1U << 31;
template <typename Word>
[[gnu::always_inline]] ISTHMUS_DEVICE Word weight_frequency(Word entry) {
  return entry & ((1U << kWeightFirstSlotShift) - 1);
}
template <typename Word>
[[gnu::always_inline]] ISTHMUS_DEVICE Word weight_first_slot(Word entry) {
  return (entry & ~kWeightIsEscape) >> kWeightFirstSlotShift;
}

// An entry for a law and a slot: the token, then its frequency, then the slot's place among the token's slots.
inline constexpr int kWeightFrequencyShift = 5;
inline constexpr int kWeightPlaceShift = 16;

struct WeightTables {
  alignas(64) std::array<std::array<uint32_t, kWeightTokens>, kWeightLaws> encode{};
  alignas(64) std::array<std::array<uint32_t, kWeightSlots>, kWeightLaws> decode{};
};

constexpr WeightTables make_weight_tables() {
  WeightTables tables;
  for (int law = 0; law < kWeightLaws; ++law) {
    uint32_t first = 0;
    for (uint32_t token = 0; token < kWeightTokens; ++token) {
      const uint32_t frequency = kWeightFrequencies[law][token];
      tables.encode[law][token] = frequency | first << kWeightFirstSlotShift;
      for (uint32_t place = 0; place < frequency; ++place) {
        tables.decode[law][first + place] = token | frequency << kWeightFrequencyShift | place << kWeightPlaceShift;
      }
      first += frequency;
    }
    const uint32_t escape = tables.encode[law][kWeightEscape] | kWeightIsEscape;
    for (int token = 0; token < kWeightTokens; ++token) {
      if (kWeightFrequencies[law][token] == 0 || token == kWeightEscape) {
        tables.encode[law][token] = escape;
      }
    }
  }
  return tables;
}
inline constexpr WeightTables kWeightTables = make_weight_tables();

}  // namespace isthmus::kernels
