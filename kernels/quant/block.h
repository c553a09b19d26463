// One block of codec `quant`: 512 elements as 32 rows of 16 lanes, in groups of eight rows. See docs/quant.md.
//
// Functions are templates over Lanes, the operations on the sixteen lanes of a row (lanes16.h). All lanes make the same
// calls in the same order, whatever the data: control flow depends on lanes.any(). So blocks may run in step beside
// each other; a block without groups only keeps step.
#pragma once

#include <cstdint>
#include <type_traits>

#include "kernels/block/magnitudes.h"
#include "kernels/quant/lane_math.h"
#include "kernels/quant/layout.h"

namespace isthmus::kernels::ISTHMUS_KERNEL_NAMESPACE {

// A group with an energy between these is quantised as it is; another is first multiplied by a power of two.
inline constexpr float kLeastQuantEnergy = 0x1p-90F;
inline constexpr float kMostQuantEnergy = 0x1p90F;

// The meaning of a group's codes: c stands for (c - centre) * scale, c <= last. The values of a rotated group are
// spread like a normal distribution: its levels lie on both sides of zero.
//
// Codes are chosen for levels a step apart: rms_steps times the root of the group's mean square. The many levels of 8
// bits do better up to the largest value.
struct Quantizer {
  int bits;
  float last;
  float centre;  // half-way between two codes
  float rms_steps;

  explicit ISTHMUS_DEVICE Quantizer(int bits_of_code)
      : bits(bits_of_code),
        last(static_cast<float>((1 << bits) - 1)),
        centre(.5F * last),
        rms_steps(steps_for_normal(bits)) {}

 private:
  // The step, for a mean square of 1, that quantises a normal distribution with the least squared error: Max,
  // "Quantizing for minimum distortion", 1960, table II; of 6 and 7 bits computed as there.
  static ISTHMUS_DEVICE float steps_for_normal(int bits) {
    switch (bits) {
      case 1:
        return 1.596F;
      case 2:
        return .9957F;
      case 3:
        return .5860F;
      case 4:
        return .3352F;
      case 5:
        return .1881F;
      case 6:
        return .1041F;
      case 7:
        return .05687F;
      default:
        return 0;
    }
  }
};

// A group that is ready to be quantised.
struct QuantGroup {
  float factor;  // that it was multiplied by: a power of two
  float energy;  // the sum of squares; not finite if an element is not
};

// rows = the transform of the rows that load(row) returns, from first_row on.
template <typename Lanes, typename Load>
ISTHMUS_QUANT float load_group(const Lanes& lanes, typename Lanes::Word signs, int first_row, float factor,
                               const Load& load, QuantGroupRows<Lanes>& rows) {
  ISTHMUS_UNROLL
  for (int r = 0; r < kQuantGroupRows; ++r) {
    rows[r] = flip_signs(lanes, load(first_row + r) * factor, signs, first_row + r);
  }
  hadamard(lanes, rows);
  return energy_of(lanes, rows);
}

// Transforms the rows, times a power of two if the values need it.
template <typename Lanes, typename Load>
ISTHMUS_QUANT QuantGroup load_any_group(const Lanes& lanes, typename Lanes::Word signs, int first_row, bool present,
                                        const Load& load, QuantGroupRows<Lanes>& rows) {
  QuantGroup group = {1, load_group(lanes, signs, first_row, 1, load, rows)};
  const bool ordinary = group.energy >= kLeastQuantEnergy && group.energy <= kMostQuantEnergy;
  if (lanes.any(present && !ordinary)) {
    ISTHMUS_UNROLL
    for (int r = 0; r < kQuantGroupRows; ++r) {
      rows[r] = load(first_row + r);
    }
    const uint32_t largest = largest_magnitude(lanes, rows);
    group.factor = ordinary ? 1 : normalizer(largest);
    group.energy = load_group(lanes, signs, first_row, group.factor, load, rows);
  }
  return group;
}

// Chooses codes for a group's rows, which are finite, and returns the scale as it is sent: the one without bias under
// random rotations (docs/quant.md).
template <typename Lanes>
ISTHMUS_QUANT float quantize_group(const Lanes& lanes, const Quantizer& quantizer, const QuantGroup& group,
                                   const QuantGroupRows<Lanes>& rows, typename Lanes::Word* codes) {
  constexpr float kShare = 1.0F / kQuantGroupElements;
  const float step = quantizer.bits == 8 ? float_of(largest_magnitude(lanes, rows)) / quantizer.centre
                                         : quantizer.rms_steps * __builtin_sqrtf(group.energy * kShare);
  const float inverse = step > 0 ? 1 / step : 0;
  typename Lanes::Float products = {};  // of values and levels
  ISTHMUS_UNROLL
  for (int r = 0; r < kQuantGroupRows; ++r) {
    const typename Lanes::Float place = rows[r] * inverse + quantizer.centre;
    const typename Lanes::Float integer = lanes.limited(place, 0, quantizer.last) + kQuantIntegers;
    codes[r] = lanes.bits(integer) & 0xff;
    products = products + rows[r] * (integer - kQuantIntegers - quantizer.centre);
  }
  const float product = sum_of_lanes(lanes, products);
  // The scale for values without the group's factor, and with the transform's 1 / n.
  const float scale = (product > 0 ? group.energy / product : 0) / group.factor * kShare;
  // Keeps what is decoded below 2^126, and so finite.
  const float most = 0x1p126F / (quantizer.centre * kQuantGroupElements);
  return to_float32(to_bfloat16(scale < most ? scale : most));
}

// Values of one group from its codes.
template <typename Lanes>
ISTHMUS_QUANT void dequantize_group(const Lanes& lanes, typename Lanes::Word signs, int first_row,
                                    const typename Lanes::Word* codes, float centre, float scale,
                                    QuantGroupRows<Lanes>& rows) {
  ISTHMUS_UNROLL
  for (int r = 0; r < kQuantGroupRows; ++r) {
    rows[r] = lanes.floats(codes[r] | kQuantIntegerBits) - kQuantIntegers - centre;
  }
  hadamard(lanes, rows);
  ISTHMUS_UNROLL
  for (int r = 0; r < kQuantGroupRows; ++r) {
    rows[r] = flip_signs(lanes, rows[r] * scale, signs, first_row + r);
  }
}

// Prefetches memory that is needed soon, with feedback: a CPU alone does not fetch far enough ahead.
ISTHMUS_QUANT void prefetch(const void* row) {
#ifndef __CUDA_ARCH__
  constexpr uintptr_t kAheadBytes = 1024;
  const uintptr_t address = reinterpret_cast<uintptr_t>(row) + kAheadBytes;  // may be no valid address: it is not read
  __builtin_prefetch(reinterpret_cast<const void*>(address));                // NOLINT(performance-no-int-to-ptr)
#endif
}

// The rows of one block of a piece: what encode_block() loads and keeps. With error feedback it encodes piece +
// residual, and keeps what the receiver lacks as the residual.
template <typename Piece, bool kFeedback, typename Lanes>
struct QuantRows {
  const Lanes* lanes;
  const Piece* piece;
  float* residual;
  int num_rows;

  ISTHMUS_QUANT typename Lanes::Float operator()(int row) const {
    const bool present = row < num_rows;
    const typename Lanes::Float values = load(piece + place_of(row), present);
    if constexpr (kFeedback) {
      prefetch(piece + place_of(row));
      prefetch(residual + place_of(row));
      return values + lanes->load(residual + place_of(row), present);
    } else {
      return values;
    }
  }

  ISTHMUS_QUANT void keep(int row, typename Lanes::Float decoded, bool present) const {
    constexpr float kLargest = 0x1.fffffep127F;
    lanes->store(lanes->limited((*this)(row)-decoded, -kLargest, kLargest), residual + place_of(row), present);
  }

 private:
  ISTHMUS_QUANT static int64_t place_of(int row) { return int64_t{row} * kQuantLanes; }
  ISTHMUS_QUANT typename Lanes::Float load(const Piece* row, bool present) const {
    if constexpr (std::is_same_v<Piece, float>) {
      return lanes->load(row, present);
    } else {
      return lanes->floats(lanes->each([=](int lane) { return present ? bits_of(widen(row[lane])) : 0U; }));
    }
  }
};

// Encodes the first `num_groups` groups of a block, the rest as missing; with no groups it writes nothing. `scales` and
// `words` (QuantWords or its like) are the block's own. Returns how many groups hold NaN or Inf. `level` becomes that
// of the largest group (magnitudes.h), if it was lower.
template <typename Lanes, typename Piece, bool kFeedback, typename Words>
ISTHMUS_QUANT int encode_block(const Lanes& lanes, const Quantizer& quantizer, uint64_t seed, int64_t block,
                               int num_groups, const QuantRows<Piece, kFeedback, Lanes>& piece, uint16_t* scales,
                               Words& words, uint32_t& level) {
  const typename Lanes::Word signs = random_signs(lanes, seed, block);
  int non_finite_groups = 0;
  typename Lanes::Word codes[kQuantRows];
  ISTHMUS_UNROLL
  for (int g = 0; g < kQuantGroups; ++g) {
    const int first_row = g * kQuantGroupRows;
    const bool present = g < num_groups;
    QuantGroupRows<Lanes> rows;
    const QuantGroup group = load_any_group(lanes, signs, first_row, present, piece, rows);
    const bool finite = is_finite(group.energy);
    float scale = quantize_group(lanes, quantizer, group, rows, codes + first_row);
    if (!(present && finite)) {
      scale = float_of(kNanBits);
      ISTHMUS_UNROLL
      for (int r = 0; r < kQuantGroupRows; ++r) {
        codes[first_row + r] = {};
      }
    }
    if (present && lanes.writes()) {
      scales[g] = to_bfloat16(scale).bits;
    }
    non_finite_groups += present && !finite;
    if constexpr (kFeedback) {
      const uint32_t of_group = level_of_squares(bits_of(group.energy), bits_of(group.factor));
      level = present && finite && of_group > level ? of_group : level;
      dequantize_group(lanes, signs, first_row, codes + first_row, quantizer.centre, scale, rows);
      ISTHMUS_UNROLL
      for (int r = 0; r < kQuantGroupRows; ++r) {
        piece.keep(first_row + r, rows[r], present && finite);
      }
    }
  }
  pack_codes(lanes, quantizer.bits, codes, num_groups > 0, words);
  return non_finite_groups;
}

// Decodes the first `num_groups` groups of a block. put(row, value, present) is called for each row of the block, with
// `present` false for rows of missing groups.
template <typename Lanes, typename Words, typename Put>
ISTHMUS_QUANT void decode_block(const Lanes& lanes, const Quantizer& quantizer, uint64_t seed, int64_t block,
                                int num_groups, const uint16_t* scales, Words& words, const Put& put) {
  const typename Lanes::Word signs = random_signs(lanes, seed, block);
  typename Lanes::Word codes[kQuantRows];
  unpack_codes(lanes, quantizer.bits, words, num_groups > 0, codes);
  ISTHMUS_UNROLL
  for (int g = 0; g < kQuantGroups; ++g) {
    const int first_row = g * kQuantGroupRows;
    const bool present = g < num_groups;
    const float scale = present ? to_float32(BFloat16{scales[g]}) : 0.0F;
    QuantGroupRows<Lanes> rows;
    dequantize_group(lanes, signs, first_row, codes + first_row, quantizer.centre, scale, rows);
    ISTHMUS_UNROLL
    for (int r = 0; r < kQuantGroupRows; ++r) {
      put(first_row + r, rows[r], present);
    }
  }
}

}  // namespace isthmus::kernels::ISTHMUS_KERNEL_NAMESPACE
