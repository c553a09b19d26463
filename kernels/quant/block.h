// One block of codec `quant`: 512 elements as 32 rows of 16 lanes, in groups of whole rows. See docs/quant.md.
//
// Functions are templates over Lanes, the operations on the sixteen lanes of a row (lanes16.h), and over the rows of a
// group. All lanes make the same calls in the same order, whatever the data: control flow depends on lanes.any(). So
// blocks may run in step beside each other; a block without groups only keeps step.
#pragma once

#include <cstdint>

#include "kernels/quant/lane_math.h"
#include "kernels/quant/layout.h"
#include "kernels/quant/planes.h"

namespace isthmus::kernels::ISTHMUS_KERNEL_NAMESPACE {

// A group whose energy lies between these is quantised as it is; others are multiplied by a power of two before.
inline constexpr float kLeastQuantEnergy = 0x1p-90F;
inline constexpr float kMostQuantEnergy = 0x1p90F;

// The meaning of a group's codes, and how they are chosen. A code c stands for (c - centre) * scale, c <= last. The
// values of a rotated group are spread like a normal distribution: its levels lie on both sides of zero. Other groups
// may hold many zeros: zero has a level there, and the group one level less.
//
// Codes are chosen for levels a step apart: the greater of rms_steps * the root of the group's mean square and
// largest_share * its largest magnitude / centre.
struct Quantizer {
  float last;
  float centre;  // a code, or half-way between two
  float rms_steps;
  float largest_share;
  QuantSettings settings;

  explicit ISTHMUS_DEVICE Quantizer(const QuantSettings& quant_settings) : settings(quant_settings) {
    const bool has_zero = !settings.rotate && settings.bits > 1;
    last = static_cast<float>((1 << settings.bits) - (has_zero ? 2 : 1));
    centre = .5F * last;
    rms_steps = settings.scale == QuantScale::kAbsmax ? 0 : steps_for_normal(settings.bits, has_zero);
    largest_share = rms_steps == 0 ? 1 : has_zero ? least_share(settings.bits) : 0;
  }

 private:
  // The step, for a mean square of 1, that quantises a normal distribution with the least squared error: Max,
  // "Quantizing for minimum distortion", 1960, table II, at 2, 4, 8 and 16 levels, and at 3, 7 and 15 with a zero. The
  // many levels of 8 bits do better up to the largest value.
  static ISTHMUS_DEVICE float steps_for_normal(int bits, bool has_zero) {
    switch (bits) {
      case 1:
        return 1.596F;
      case 2:
        return has_zero ? 1.224F : .9957F;
      case 3:
        return has_zero ? .6508F : .5860F;
      case 4:
        return has_zero ? .3534F : .3352F;
      default:
        return 0;
    }
  }

  // Without rotation there are outliers. Chosen by the error on normal, Laplace, Student's t and sparse data.
  static ISTHMUS_DEVICE float least_share(int bits) { return bits == 2 ? .5F : bits == 3 ? .75F : .85F; }
};

// Calls visit<kGroupRows, kRotate>() as the settings say.
template <typename Visit>
auto with_group(const QuantSettings& settings, const Visit& visit) {
  const auto with_rows = [&]<int kGroupRows>() {
    return settings.rotate ? visit.template operator()<kGroupRows, true>()
                           : visit.template operator()<kGroupRows, false>();
  };
  switch (settings.group_elements / kQuantLanes) {
    case 2:
      return with_rows.template operator()<2>();
    case 4:
      return with_rows.template operator()<4>();
    case 8:
      return with_rows.template operator()<8>();
    case 16:
      return with_rows.template operator()<16>();
    default:
      return with_rows.template operator()<32>();
  }
}

// The scale as it is sent: rounded to nearest even, or up. `scale` is finite and not negative.
ISTHMUS_QUANT float scale_as_sent(float scale, QuantScaleType type, bool up) {
  if (type == QuantScaleType::kFloat32) {
    return scale;
  }
  const uint32_t bits = quant_bits_of(scale);
  return quant_float_of((bits + (up ? 0xffff : 0x7fff + ((bits >> 16) & 1))) & 0xffff0000);
}

ISTHMUS_QUANT int64_t scale_bytes(QuantScaleType type) { return type == QuantScaleType::kFloat32 ? 4 : 2; }

ISTHMUS_QUANT void write_scale(float scale, QuantScaleType type, void* scales, int64_t group) {
  if (type == QuantScaleType::kFloat32) {
    static_cast<float*>(scales)[group] = scale;
  } else {
    static_cast<uint16_t*>(scales)[group] = static_cast<uint16_t>(quant_bits_of(scale) >> 16);
  }
}
ISTHMUS_QUANT float read_scale(const void* scales, QuantScaleType type, int64_t group) {
  return type == QuantScaleType::kFloat32
             ? static_cast<const float*>(scales)[group]
             : quant_float_of(static_cast<uint32_t>(static_cast<const uint16_t*>(scales)[group]) << 16);
}

// A group as it is quantised.
struct QuantGroup {
  float factor;  // that it was multiplied by: a power of two
  float energy;  // the sum of squares; not finite if an element is not
};

// rows = the transform of the rows that load(row) gives, from first_row on.
template <int kGroupRows, bool kRotate, typename Lanes, typename Load>
ISTHMUS_QUANT float load_group(const Lanes& lanes, const QuantRandom<Lanes>& random, int first_row, float factor,
                               const Load& load, typename Lanes::Float (&rows)[kGroupRows]) {
  ISTHMUS_UNROLL
  for (int r = 0; r < kGroupRows; ++r) {
    rows[r] = load(first_row + r) * factor;
    if constexpr (kRotate) {
      rows[r] = flip_signs(lanes, rows[r], random.signs, first_row + r);
    }
  }
  if constexpr (kRotate) {
    hadamard<kGroupRows>(lanes, rows);
  }
  return energy_of<kGroupRows>(lanes, rows);
}

// The same, times a power of two if that is needed to compute with the values.
template <int kGroupRows, bool kRotate, typename Lanes, typename Load>
ISTHMUS_QUANT QuantGroup load_any_group(const Lanes& lanes, const QuantRandom<Lanes>& random, int first_row,
                                        bool present, const Load& load, typename Lanes::Float (&rows)[kGroupRows]) {
  QuantGroup group = {1, load_group<kGroupRows, kRotate>(lanes, random, first_row, 1, load, rows)};
  const bool ordinary = group.energy >= kLeastQuantEnergy && group.energy <= kMostQuantEnergy;
  if (lanes.any(present && !ordinary)) {
    ISTHMUS_UNROLL
    for (int r = 0; r < kGroupRows; ++r) {
      rows[r] = load(first_row + r);
    }
    const uint32_t largest = largest_magnitude<kGroupRows>(lanes, rows);
    group.factor = ordinary ? 1 : normalizer(largest);
    group.energy = load_group<kGroupRows, kRotate>(lanes, random, first_row, group.factor, load, rows);
  }
  return group;
}

// The scale that is sent, for values that were not multiplied by the group's factor, and without rotation's 1 / n.
// products: of values and levels, summed over the group; norms: of levels with themselves.
ISTHMUS_QUANT float choose_scale(const Quantizer& quantizer, const QuantGroup& group, float step, float products,
                                 float norms) {
  switch (quantizer.settings.scale) {
    case QuantScale::kAbsmax:
      break;
    case QuantScale::kLeastError:
      step = products > 0 ? products / norms : 0;
      break;
    case QuantScale::kUnbiased:
      step = products > 0 ? group.energy / products : 0;
      break;
  }
  return step / group.factor;
}

// Chooses codes for the rows of a group, finite numbers, and returns the scale as it is sent.
template <int kGroupRows, typename Lanes>
ISTHMUS_QUANT float quantize_group(const Lanes& lanes, const Quantizer& quantizer, const QuantRandom<Lanes>& random,
                                   int first_row, const QuantGroup& group,
                                   const typename Lanes::Float (&rows)[kGroupRows], typename Lanes::Word* codes) {
  const QuantSettings& settings = quantizer.settings;
  constexpr float kShare = 1.0F / (kQuantLanes * kGroupRows);
  float step = quantizer.rms_steps * __builtin_sqrtf(group.energy * kShare);
  if (quantizer.largest_share > 0) {
    const float largest = quant_float_of(largest_magnitude<kGroupRows>(lanes, rows));
    const float from_largest = quantizer.largest_share * largest / quantizer.centre;
    step = step > from_largest ? step : from_largest;
  }
  if (settings.scale == QuantScale::kAbsmax) {
    step = scale_as_sent(step, settings.scale_type, true);
  }
  const float inverse = step > 0 ? 1 / step : 0;
  typename Lanes::Float products = {};
  typename Lanes::Float norms = {};
  ISTHMUS_UNROLL
  for (int r = 0; r < kGroupRows; ++r) {
    typename Lanes::Float place = rows[r] * inverse + quantizer.centre;
    if (settings.stochastic) {
      place = place + rounding_noise(lanes, random.noise, first_row + r);
    }
    const typename Lanes::Float integer = lanes.limited(place, 0, quantizer.last) + kQuantIntegers;
    codes[r] = lanes.bits(integer) & 0xff;
    const typename Lanes::Float level = integer - kQuantIntegers - quantizer.centre;
    products = products + rows[r] * level;
    norms = norms + level * level;
  }
  const float scale = choose_scale(quantizer, group, step, sum_of_lanes(lanes, products), sum_of_lanes(lanes, norms)) *
                      (settings.rotate ? kShare : 1.0F);
  // Keeps what is decoded below 2^126, and so finite.
  const float most = 0x1p126F / (quantizer.centre * (settings.rotate ? kQuantLanes * kGroupRows : 1));
  return scale_as_sent(scale < most ? scale : most, settings.scale_type, false);
}

// Values of one group from its codes.
template <int kGroupRows, bool kRotate, typename Lanes>
ISTHMUS_QUANT void dequantize_group(const Lanes& lanes, const QuantRandom<Lanes>& random, int first_row,
                                    const typename Lanes::Word* codes, float centre, float scale,
                                    typename Lanes::Float (&rows)[kGroupRows]) {
  ISTHMUS_UNROLL
  for (int r = 0; r < kGroupRows; ++r) {
    rows[r] = lanes.floats(codes[r] | kQuantIntegerBits) - kQuantIntegers - centre;
  }
  if constexpr (kRotate) {
    hadamard<kGroupRows>(lanes, rows);
  }
  ISTHMUS_UNROLL
  for (int r = 0; r < kGroupRows; ++r) {
    rows[r] = rows[r] * scale;
    if constexpr (kRotate) {
      rows[r] = flip_signs(lanes, rows[r], random.signs, first_row + r);
    }
  }
}

// Encodes the first `num_groups` groups of a block, the rest as missing; with no groups it writes nothing. `scales` and
// `words` (QuantWords or its like) are the block's own. load(row) gives a row of the block, zeros for a missing row.
// keep(row, value) is called, if Keep::kWanted, with the value that the receiver decodes for each row, except for
// groups that are missing or hold NaN or Inf. Returns how many groups hold NaN or Inf.
template <int kGroupRows, bool kRotate, typename Lanes, typename Load, typename Keep, typename Words>
ISTHMUS_QUANT int encode_block(const Lanes& lanes, const Quantizer& quantizer, uint64_t seed, int64_t block,
                               int num_groups, const Load& load, const Keep& keep, void* scales, Words& words) {
  constexpr int kGroups = kQuantRows / kGroupRows;
  const QuantSettings& settings = quantizer.settings;
  const QuantRandom<Lanes> random(lanes, settings, seed, block);
  int non_finite_groups = 0;
  typename Lanes::Word codes[kQuantRows];
  ISTHMUS_UNROLL
  for (int g = 0; g < kGroups; ++g) {
    const int first_row = g * kGroupRows;
    const bool present = g < num_groups;
    typename Lanes::Float rows[kGroupRows];
    const QuantGroup group = load_any_group<kGroupRows, kRotate>(lanes, random, first_row, present, load, rows);
    const bool finite = quant_bits_of(group.energy) < kQuantInfinity;
    float scale = quantize_group<kGroupRows>(lanes, quantizer, random, first_row, group, rows, codes + first_row);
    if (!(present && finite)) {
      scale = quant_float_of(kQuantNan);
      ISTHMUS_UNROLL
      for (int r = 0; r < kGroupRows; ++r) {
        codes[first_row + r] = {};
      }
    }
    if (present && lanes.writes()) {
      write_scale(scale, settings.scale_type, scales, g);
    }
    non_finite_groups += present && !finite;
    if constexpr (Keep::kWanted) {
      dequantize_group<kGroupRows, kRotate>(lanes, random, first_row, codes + first_row, quantizer.centre, scale, rows);
      ISTHMUS_UNROLL
      for (int r = 0; r < kGroupRows; ++r) {
        keep(first_row + r, rows[r], present && finite);
      }
    }
  }
  pack_codes(lanes, settings.bits, codes, num_groups > 0, words);
  return non_finite_groups;
}

// Decodes the first `num_groups` groups of a block. put(row, value, present) is called for each row of the block, with
// `present` false for rows of missing groups.
template <int kGroupRows, bool kRotate, typename Lanes, typename Words, typename Put>
ISTHMUS_QUANT void decode_block(const Lanes& lanes, const Quantizer& quantizer, uint64_t seed, int64_t block,
                                int num_groups, const void* scales, Words& words, const Put& put) {
  constexpr int kGroups = kQuantRows / kGroupRows;
  const QuantSettings& settings = quantizer.settings;
  QuantSettings without_noise = settings;
  without_noise.stochastic = false;
  const QuantRandom<Lanes> random(lanes, without_noise, seed, block);
  typename Lanes::Word codes[kQuantRows];
  unpack_codes(lanes, settings.bits, words, num_groups > 0, codes);
  ISTHMUS_UNROLL
  for (int g = 0; g < kGroups; ++g) {
    const bool present = g < num_groups;
    const float scale = present ? read_scale(scales, settings.scale_type, g) : 0.0F;
    typename Lanes::Float rows[kGroupRows];
    dequantize_group<kGroupRows, kRotate>(lanes, random, g * kGroupRows, codes + g * kGroupRows, quantizer.centre,
                                          scale, rows);
    ISTHMUS_UNROLL
    for (int r = 0; r < kGroupRows; ++r) {
      put(g * kGroupRows + r, rows[r], present);
    }
  }
}

}  // namespace isthmus::kernels::ISTHMUS_KERNEL_NAMESPACE
