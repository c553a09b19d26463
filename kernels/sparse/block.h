// Block algorithms of codec `sparse` that every executor uses: how values are coded, and how blocks are laid out.
#pragma once

#include "kernels/sparse/layout.h"
#include "kernels/tagc/block.h"

namespace isthmus::kernels::ISTHMUS_KERNEL_NAMESPACE {

inline constexpr uint16_t kSparseFlaggedCount = 0xffff;  // its low bytes where counts have one

// To the nearest bfloat16, ties to even; but never beyond the largest finite one. Of finite values only.
ISTHMUS_DEVICE uint16_t finite_bfloat16(float value) {
  constexpr uint32_t kLargest = 0x7f7f;
  const uint32_t bits = bits_of(value);
  const uint32_t rounded = ((bits & kMagnitudeMask) + 0x7fff + (bits >> 16 & 1)) >> 16;
  return static_cast<uint16_t>((rounded < kLargest ? rounded : kLargest) | (bits >> 16 & 0x8000));
}

ISTHMUS_DEVICE float widen_bfloat16(uint16_t bits) { return float_of(static_cast<uint32_t>(bits) << 16); }

// To the nearest integer, ties to even, of values below 2^22: adding this leaves no room for a fraction.
ISTHMUS_DEVICE float round_to_integer(float value) {
  constexpr float kNoFraction = 0x1.8p23F;
  return (value + kNoFraction) - kNoFraction;
}

// How a block's values are sent as `Wire`. `scale` is the block's, as it is sent: a bfloat16, or 0 where there is none.
template <SparseValueType kType>
struct SparseValue;

template <>
struct SparseValue<SparseValueType::kFloat32> {
  using Wire = uint32_t;
  static ISTHMUS_DEVICE uint16_t scale(uint32_t /*largest*/) { return 0; }
  static ISTHMUS_DEVICE Wire encode(float value, float /*scale*/) { return bits_of(value); }
  static ISTHMUS_DEVICE float decode(Wire wire, float /*scale*/) { return float_of(wire); }
};

template <>
struct SparseValue<SparseValueType::kBFloat16> {
  using Wire = uint16_t;
  static ISTHMUS_DEVICE uint16_t scale(uint32_t /*largest*/) { return 0; }
  static ISTHMUS_DEVICE Wire encode(float value, float /*scale*/) { return finite_bfloat16(value); }
  static ISTHMUS_DEVICE float decode(Wire wire, float /*scale*/) { return widen_bfloat16(wire); }
};

// The scale has 8 significant bits, so that its product with an integer below 128 is exact.
template <>
struct SparseValue<SparseValueType::kInt8> {
  using Wire = int8_t;
  static constexpr float kLargestInteger = 127;
  // largest: magnitude of the block's largest value.
  static ISTHMUS_DEVICE uint16_t scale(uint32_t largest) {
    return finite_bfloat16(float_of(largest) / kLargestInteger);
  }
  static ISTHMUS_DEVICE Wire encode(float value, float scale) {
    if (scale == 0) {
      return 0;
    }
    const float quotient = value / scale;
    const float below = quotient < kLargestInteger ? quotient : kLargestInteger;
    return static_cast<Wire>(round_to_integer(below > -kLargestInteger ? below : -kLargestInteger));
  }
  static ISTHMUS_DEVICE float decode(Wire wire, float scale) { return static_cast<float>(wire) * scale; }
};

// Calls visit(SparseValue<...>()) for a type that is known at run time only.
template <typename Visit>
ISTHMUS_DEVICE void with_value_type(SparseValueType type, Visit visit) {
  switch (type) {
    case SparseValueType::kFloat32:
      return visit(SparseValue<SparseValueType::kFloat32>());
    case SparseValueType::kBFloat16:
      return visit(SparseValue<SparseValueType::kBFloat16>());
    case SparseValueType::kInt8:
      return visit(SparseValue<SparseValueType::kInt8>());
  }
}

// Where one block lies in a packet. `Byte` is uint8_t, const where the packet is read.
template <typename Byte>
struct SparseBlock {
  int64_t count_bytes;
  Byte* counts;
  Byte* scale;
  Byte* offsets;
  Byte* values;

  ISTHMUS_DEVICE SparseBlock(const SparseShape& shape, const SparseLayout& layout, int64_t block, Byte* packet)
      : count_bytes(shape.count_bytes()),
        counts(packet + layout.counts + block * kSparseQuarters * count_bytes),
        scale(packet + layout.scales + 2 * block),
        offsets(packet + layout.offsets + block * shape.keep),
        values(packet + layout.values + block * shape.keep * shape.value_bytes()) {}

  // As it is sent: kSparseFlaggedCount, less its high byte where counts have one byte, for a block that is flagged.
  ISTHMUS_DEVICE uint32_t count(int64_t quarter) const {
    return count_bytes == 1 ? counts[quarter] : counts[2 * quarter] | counts[2 * quarter + 1] << 8;
  }
  ISTHMUS_DEVICE void set_count(int64_t quarter, uint32_t count) const {
    for (int64_t byte = 0; byte < count_bytes; ++byte) {
      counts[quarter * count_bytes + byte] = static_cast<uint8_t>(count >> 8 * byte);
    }
  }
  ISTHMUS_DEVICE bool is_flagged() const {
    const uint32_t flag = count_bytes == 1 ? kSparseFlaggedCount & 0xff : kSparseFlaggedCount;
    return count(0) == flag && count(1) == flag && count(2) == flag && count(3) == flag;
  }
};

}  // namespace isthmus::kernels::ISTHMUS_KERNEL_NAMESPACE
