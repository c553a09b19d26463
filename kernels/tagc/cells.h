// The cells of a sketch between nodes: values as patterns of 32, 16 or 8 bits, which combine by XOR. A value is rounded
// once, to the nearest pattern, ties to even; the rounding error is exactly a float32, which the sender keeps. See
// docs/tagc.md, "Cells".
#pragma once

#include "kernels/block/float_types.h"
#include "kernels/tagc/block.h"

namespace isthmus::kernels::ISTHMUS_KERNEL_NAMESPACE {

// The byte that scales a block's values: the exponent of its largest magnitude, and at least 1; 0: no values.
ISTHMUS_DEVICE uint32_t scale_of(uint32_t largest_magnitude) {
  const uint32_t exponent = largest_magnitude >> 23;
  return exponent == 0 && largest_magnitude != 0 ? 1 : exponent;
}

// value * 2^exponent, for exponents from -252 to 254. One factor may not fit float32, so there are two. A cell's value
// is far from both ends: the first product is exact, and the second rounds like a single one.
ISTHMUS_DEVICE float scaled_by(float value, int exponent) {
  const int half = exponent >> 1;
  const uint32_t first = static_cast<uint32_t>(127 + half) << 23;
  const uint32_t second = static_cast<uint32_t>(127 + exponent - half) << 23;
  return value * float_of(first) * float_of(second);
}

// A type of cell has
//   Cell                   the pattern
//   kIsScaled              whether encode() and decode() look at `scale`
//   encode(value, scale)   of a finite value, not above the largest that `scale` was made for
//   decode(cell, scale)    of any pattern and any byte; what encode() made becomes a finite value

struct Float32Cells {
  using Cell = uint32_t;
  static constexpr bool kIsScaled = false;
  static ISTHMUS_DEVICE Cell encode(float value, uint32_t /*scale*/) { return bits_of(value); }
  static ISTHMUS_DEVICE float decode(Cell cell, uint32_t /*scale*/) { return float_of(cell); }
};

struct BFloat16Cells {
  using Cell = uint16_t;
  static constexpr bool kIsScaled = false;
  static ISTHMUS_DEVICE Cell encode(float value, uint32_t /*scale*/) {
    constexpr uint32_t kInfinity = 0x7f80;
    const uint32_t rounded = to_bfloat16(value).bits;
    return static_cast<Cell>((rounded & 0x7fff) == kInfinity ? rounded - 1 : rounded);
  }
  static ISTHMUS_DEVICE float decode(Cell cell, uint32_t /*scale*/) { return to_float32(BFloat16{cell}); }
};

// The block's largest magnitude is scaled to at least 2^14 and less than 2^15. Values so much smaller that the product
// is not exact become 0.
struct Float16Cells {
  using Cell = uint16_t;
  static constexpr bool kIsScaled = true;
  static constexpr int kExponent = 127 + 14;  // less the scale: of the power of two that scales
  static ISTHMUS_DEVICE Cell encode(float value, uint32_t scale) {
    constexpr uint32_t kTooLarge = 0x7800;  // 2^15, which could decode to 2^128
    const uint32_t rounded = to_float16(scaled_by(value, kExponent - static_cast<int>(scale))).bits;
    return static_cast<Cell>((rounded & 0x7fff) == kTooLarge ? rounded - 1 : rounded);
  }
  static ISTHMUS_DEVICE float decode(Cell cell, uint32_t scale) {
    return scaled_by(to_float32(Float16{cell}), static_cast<int>(scale) - kExponent);
  }
};

// The block's largest magnitude is scaled to at least 64 and less than 128; integers from -127 to 127.
struct Int8Cells {
  using Cell = uint8_t;
  static constexpr bool kIsScaled = true;
  static constexpr int kExponent = 127 + 6;
  static ISTHMUS_DEVICE Cell encode(float value, uint32_t scale) {
    constexpr float kRounder = 0x1.8p23F;  // a number added to it is rounded to an integer
    const float scaled = scaled_by(value, kExponent - static_cast<int>(scale));
    const auto rounded = static_cast<int32_t>(scaled + kRounder - kRounder);
    return static_cast<Cell>(rounded > 127 ? 127 : rounded < -127 ? -127 : rounded);
  }
  static ISTHMUS_DEVICE float decode(Cell cell, uint32_t scale) {
    return scaled_by(static_cast<float>(static_cast<int8_t>(cell)), static_cast<int>(scale) - kExponent);
  }
};

// A cell that combines bit patterns of values by XOR: exact in any order, and values cannot disturb each other.
template <typename Pattern>
struct XorCell {
  using Type = Pattern;
  static ISTHMUS_DEVICE Pattern value(Pattern cell, bool /*negative*/) { return cell; }
  static ISTHMUS_DEVICE void insert(Pattern& cell, Pattern pattern, bool /*negative*/) { cell ^= pattern; }
};

// visit(Cells{}), the type that `type` names.
template <typename Visit>
auto with_cells(CellType type, Visit visit) {
  switch (type) {
    case CellType::kFloat32:
      break;
    case CellType::kBFloat16:
      return visit(BFloat16Cells{});
    case CellType::kFloat16:
      return visit(Float16Cells{});
    case CellType::kInt8:
      return visit(Int8Cells{});
  }
  return visit(Float32Cells{});
}

}  // namespace isthmus::kernels::ISTHMUS_KERNEL_NAMESPACE
