// The 16-bit floating types as bits, and their conversions, free of branches, so that loops over them vectorise. A GPU
// converts float16 in hardware, to the same bits. Functions that block algorithms call are always inlined: every
// instruction set compiles them, and the linker must not merge the copies.
#pragma once

#include <bit>
#include <cmath>
#include <cstdint>
#include <type_traits>

#include "isthmus/buffer.h"
#include "kernels/block/host_device.h"

namespace isthmus {

struct BFloat16 {
  uint16_t bits;
};
struct Float16 {
  uint16_t bits;
};

[[gnu::always_inline]] ISTHMUS_DEVICE uint32_t bits_of(float value) { return std::bit_cast<uint32_t>(value); }
[[gnu::always_inline]] ISTHMUS_DEVICE float float_of(uint32_t bits) { return std::bit_cast<float>(bits); }

// Magnitudes order as values do, and those of Inf and NaN are the highest.
inline constexpr uint32_t kSignBit = 0x80000000;
inline constexpr uint32_t kInfinityBits = 0x7f800000;
inline constexpr uint32_t kNanBits = 0x7fc00000;  // the only NaN that codecs make
[[gnu::always_inline]] ISTHMUS_DEVICE uint32_t magnitude(float value) { return bits_of(value) & ~kSignBit; }
[[gnu::always_inline]] ISTHMUS_DEVICE bool is_finite(float value) { return magnitude(value) < kInfinityBits; }

[[gnu::always_inline]] ISTHMUS_DEVICE float to_float32(BFloat16 value) {
  return std::bit_cast<float>(static_cast<uint32_t>(value.bits) << 16);
}

// NaN keeps its sign and becomes quiet; everything else is rounded to nearest, ties to even.
[[gnu::always_inline]] ISTHMUS_DEVICE BFloat16 to_bfloat16(float value) {
  const uint32_t bits = std::bit_cast<uint32_t>(value);
  const uint32_t rounded = (bits + 0x7fff + ((bits >> 16) & 1)) >> 16;
  const uint32_t quiet_nan = (bits >> 16) | 0x40;
  return {static_cast<uint16_t>((bits & 0x7fffffff) > 0x7f800000 ? quiet_nan : rounded)};
}

// Every NaN becomes 0x7fffffff, as a GPU makes it.
[[gnu::always_inline]] ISTHMUS_DEVICE float to_float32(Float16 value) {
#ifdef __CUDA_ARCH__
  float result;
  asm("cvt.f32.f16 %0, %1;" : "=f"(result) : "h"(value.bits));
  return result;
#else
  const uint32_t magnitude = value.bits & 0x7fffu;
  const uint32_t sign = (value.bits & 0x8000u) << 16;
  const uint32_t normal = (magnitude << 13) + (112u << 23);
  // Denormals: an integer multiple of 2^-24. Computed without denormal float32, so that flush-to-zero does no harm.
  const uint32_t denormal = std::bit_cast<uint32_t>(static_cast<float>(static_cast<int32_t>(magnitude)) * 0x1p-24f);
  const uint32_t finite = magnitude < 0x400 ? denormal : normal;
  const uint32_t number = sign | (magnitude >= 0x7c00 ? 0x7f800000u : finite);
  return std::bit_cast<float>(magnitude > 0x7c00 ? 0x7fffffffu : number);
#endif
}

// Every NaN becomes 0x7fff, as a GPU makes it: after a sum its NaNs have no other bits, and a CPU's have many. From
// 65520 on the result is Inf.
[[gnu::always_inline]] ISTHMUS_DEVICE Float16 to_float16(float value) {
#ifdef __CUDA_ARCH__
  Float16 result;
  asm("cvt.rn.f16.f32 %0, %1;" : "=h"(result.bits) : "f"(value));
  return result;
#else
  const uint32_t bits = std::bit_cast<uint32_t>(value);
  const uint32_t magnitude = bits & 0x7fffffff;
  const uint32_t sign = (bits >> 16) & 0x8000;
  const uint32_t normal = (magnitude - (112u << 23) + 0xfff + ((magnitude >> 13) & 1)) >> 13;
  // Below 2^-14 the result is denormal: adding 0.5 rounds to a multiple of 2^-24, the unit of such results.
  const uint32_t denormal = std::bit_cast<uint32_t>(std::bit_cast<float>(magnitude) + 0.5f) - 0x3f000000u;
  const uint32_t finite = magnitude < 0x38800000u ? denormal : normal;
  const uint32_t saturated = magnitude >= 0x477ff000u ? 0x7c00u : finite;
  return {static_cast<uint16_t>(magnitude > 0x7f800000u ? 0x7fffu : sign | saturated)};
#endif
}

// Converts float64 to float32, rounded to odd if inexact. Rounding the result to a shorter type then gives what one
// rounding of the float64 would have given.
ISTHMUS_DEVICE float to_float32_odd(double value) {
  const float nearest = static_cast<float>(value);
  if (static_cast<double>(nearest) == value || std::isnan(value)) {
    return nearest;
  }
  const bool away_from_zero = std::fabs(static_cast<double>(nearest)) > std::fabs(value);
  const uint32_t toward_zero = std::bit_cast<uint32_t>(nearest) - (away_from_zero ? 1u : 0u);
  return std::bit_cast<float>(toward_zero | 1u);
}

// The value as float or double, exactly.
template <typename T>
ISTHMUS_DEVICE auto widen(T value) {
  if constexpr (std::is_floating_point_v<T>) {
    return value;
  } else {
    return to_float32(value);
  }
}

// Converts between any two types with one rounding.
template <typename Out, typename In>
ISTHMUS_DEVICE Out narrow(In value) {
  if constexpr (std::is_floating_point_v<Out>) {
    return static_cast<Out>(value);
  } else if constexpr (std::is_same_v<In, double>) {
    return narrow<Out>(to_float32_odd(value));
  } else if constexpr (std::is_same_v<Out, BFloat16>) {
    return to_bfloat16(value);
  } else {
    return to_float16(value);
  }
}

// value * factor. The product is taken in float32 (float64 where either side is float64) and rounded once.
template <typename Out, typename In>
ISTHMUS_DEVICE Out scaled(In value, double factor) {
  using Product = std::conditional_t<std::is_same_v<In, double> || std::is_same_v<Out, double>, double, float>;
  return narrow<Out>(static_cast<Product>(widen(value)) * static_cast<Product>(factor));
}

// A value too large for float32 becomes the largest float32. NaN stays NaN.
ISTHMUS_DEVICE float limited_to_float32(double value) {
  constexpr double kLargest = 0x1.fffffep127;
  const double below = value > kLargest ? kLargest : value;
  return static_cast<float>(below < -kLargest ? -kLargest : below);
}

// Calls visit(T{}) with the C++ type of a floating `dtype`. Returns whether it is one.
template <typename Visit>
bool with_floating_type(DataType dtype, const Visit& visit) {
  switch (dtype) {
    case DataType::kFloat32:
      visit(float{});
      return true;
    case DataType::kBFloat16:
      visit(BFloat16{});
      return true;
    case DataType::kFloat16:
      visit(Float16{});
      return true;
    case DataType::kFloat64:
      visit(double{});
      return true;
    case DataType::kByte:
      break;
  }
  return false;
}

}  // namespace isthmus
