// Arithmetic of codec `quant` on the sixteen lanes of a row: random signs, the Hadamard transform, sums and maxima.
// Templates over Lanes (kernels/block/lanes16.h); kernels/quant/block.h says what that asks of callers.
#pragma once

#include <cstdint>

#include "kernels/block/group.h"
#include "kernels/block/hashes.h"
#include "kernels/quant/layout.h"

// Always inlined, so that lanes stay in registers: the compiler would leave calls. Not under sanitizers, where one
// large function takes it many minutes.
#ifdef ISTHMUS_CALL_LANES
#define ISTHMUS_QUANT ISTHMUS_DEVICE
#else
#define ISTHMUS_QUANT [[gnu::always_inline]] ISTHMUS_DEVICE
#endif

namespace isthmus::kernels::ISTHMUS_KERNEL_NAMESPACE {

inline constexpr uint32_t kQuantSign = 0x80000000;
inline constexpr uint32_t kQuantInfinity = 0x7f800000;
inline constexpr uint32_t kQuantNan = 0x7fc00000;

// 2^23: a number added to it is rounded to an integer, which the sum's lowest bits hold.
inline constexpr float kQuantIntegers = 0x1p23F;
inline constexpr uint32_t kQuantIntegerBits = 0x4b000000;

ISTHMUS_QUANT uint32_t quant_bits_of(float value) {
  uint32_t bits;
  __builtin_memcpy(&bits, &value, sizeof(bits));
  return bits;
}
ISTHMUS_QUANT float quant_float_of(uint32_t bits) {
  float value;
  __builtin_memcpy(&value, &bits, sizeof(value));
  return value;
}

// The random bits of one block: the sign of element (row, lane) is bit `row` of the lane's word.
template <typename Lanes>
ISTHMUS_QUANT typename Lanes::Word random_signs(const Lanes& lanes, uint64_t seed, int64_t block) {
  constexpr uint64_t kGoldenRatio = 0x9e3779b97f4a7c15;
  return lanes.each([=](int lane) {
    const uint64_t counter = static_cast<uint64_t>(8 * block + lane / 2 + 1);
    return static_cast<uint32_t>(mix(seed + kGoldenRatio * counter) >> (32 * (lane % 2)));
  });
}

template <typename Lanes>
ISTHMUS_QUANT typename Lanes::Float flip_signs(const Lanes& lanes, typename Lanes::Float value,
                                               typename Lanes::Word signs, int row) {
  return lanes.floats(lanes.bits(value) ^ ((signs << (31 - row)) & kQuantSign));
}

// In lanes without bit kDistance: a + b; in the others: b - a; where b is the lane's partner.
template <int kDistance, typename Lanes>
ISTHMUS_QUANT typename Lanes::Float butterfly(const Lanes& lanes, typename Lanes::Float a) {
  const typename Lanes::Word upper = lanes.each([](int lane) { return (lane & kDistance) != 0 ? kQuantSign : 0U; });
  return lanes.template exchange<kDistance>(a) + lanes.floats(lanes.bits(a) ^ upper);
}

template <typename Lanes>
using QuantGroupRows = typename Lanes::Float[kQuantGroupRows];

// The Hadamard transform of a group without its factor 1 / sqrt(n): stages ascend, lanes first.
template <typename Lanes>
ISTHMUS_QUANT void hadamard(const Lanes& lanes, QuantGroupRows<Lanes>& rows) {
  ISTHMUS_UNROLL
  for (int r = 0; r < kQuantGroupRows; ++r) {
    rows[r] = butterfly<1>(lanes, rows[r]);
    rows[r] = butterfly<2>(lanes, rows[r]);
    rows[r] = butterfly<4>(lanes, rows[r]);
    rows[r] = butterfly<8>(lanes, rows[r]);
  }
  ISTHMUS_UNROLL
  for (int distance = 1; distance < kQuantGroupRows; distance *= 2) {
    ISTHMUS_UNROLL
    for (int r = 0; r < kQuantGroupRows; ++r) {
      if ((r & distance) == 0) {
        const typename Lanes::Float upper = rows[r + distance];
        rows[r + distance] = rows[r] - upper;
        rows[r] = rows[r] + upper;
      }
    }
  }
}

// Summed in a tree that is the same on all executors.
template <typename Lanes>
ISTHMUS_QUANT float sum_of_lanes(const Lanes& lanes, typename Lanes::Float a) {
  a = a + lanes.template exchange<1>(a);
  a = a + lanes.template exchange<2>(a);
  a = a + lanes.template exchange<4>(a);
  return lanes.common(a + lanes.template exchange<8>(a));
}

// The largest magnitude's bit pattern. That of NaN is above that of Inf.
template <typename Lanes>
ISTHMUS_QUANT uint32_t largest_magnitude(const Lanes& lanes, const QuantGroupRows<Lanes>& rows) {
  typename Lanes::Word largest = {};
  ISTHMUS_UNROLL
  for (int r = 0; r < kQuantGroupRows; ++r) {
    largest = lanes.max(largest, lanes.bits(rows[r]) & ~kQuantSign);
  }
  const auto with_partner = [&](auto partner) { return lanes.max(largest, lanes.bits(partner)); };
  largest = with_partner(lanes.template exchange<1>(lanes.floats(largest)));
  largest = with_partner(lanes.template exchange<2>(lanes.floats(largest)));
  largest = with_partner(lanes.template exchange<4>(lanes.floats(largest)));
  return lanes.common(with_partner(lanes.template exchange<8>(lanes.floats(largest))));
}

template <typename Lanes>
ISTHMUS_QUANT float energy_of(const Lanes& lanes, const QuantGroupRows<Lanes>& rows) {
  typename Lanes::Float sum = rows[0] * rows[0];
  ISTHMUS_UNROLL
  for (int r = 1; r < kQuantGroupRows; ++r) {
    sum = sum + rows[r] * rows[r];
  }
  return sum_of_lanes(lanes, sum);
}

// A power of two that brings a magnitude into [1, 4), or as near as float32 allows.
ISTHMUS_QUANT float normalizer(uint32_t magnitude) {
  const uint32_t exponent = magnitude >> 23;
  return quant_float_of((254 - (exponent > 253 ? 253 : exponent)) << 23);
}

}  // namespace isthmus::kernels::ISTHMUS_KERNEL_NAMESPACE
