// One block of codec `quant`: 512 elements as 32 rows of 16 lanes, in groups of whole rows. See docs/quant.md.
//
// Functions are templates over Lanes, what acts on the sixteen lanes of a row (lanes16.h), and over the rows of a
// group. All lanes make the same calls in the same order, whatever the data: control flow depends on what lanes.any()
// says. So blocks may run in step beside each other, and one that is only there to keep step has no groups.
#pragma once

#include <cstdint>

#include "kernels/block/group.h"
#include "kernels/block/mix.h"
#include "kernels/quant/layout.h"

// The compiler's own judgement leaves calls where lanes would be in registers. Under sanitizers it may: all in one
// function take it many minutes.
#ifdef ISTHMUS_CALL_LANES
#define ISTHMUS_QUANT ISTHMUS_DEVICE
#else
#define ISTHMUS_QUANT [[gnu::always_inline]] ISTHMUS_DEVICE
#endif

namespace isthmus::kernels::ISTHMUS_KERNEL_NAMESPACE {

inline constexpr uint32_t kQuantSign = 0x80000000;
inline constexpr uint32_t kQuantInfinity = 0x7f800000;
inline constexpr uint32_t kQuantNan = 0x7fc00000;

// 2^23: what is added to it is rounded to an integer, which its lowest bits then hold.
inline constexpr float kQuantIntegers = 0x1p23F;
inline constexpr uint32_t kQuantIntegerBits = 0x4b000000;

// A group whose energy lies between these is quantised as it is; others are multiplied by a power of two before.
inline constexpr float kLeastQuantEnergy = 0x1p-90F;
inline constexpr float kMostQuantEnergy = 0x1p90F;

// What a group's codes mean, and how they are chosen. A code c stands for (c - centre) * scale, c <= last. The values
// of a rotated group are spread like a normal distribution: its levels lie on both sides of zero. Others may hold many
// zeros, which have a level of their own, for one level less.
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

// Thirty-two random bits of each lane for one block.
template <typename Lanes>
ISTHMUS_QUANT typename Lanes::Word random_words(const Lanes& lanes, uint64_t seed, int64_t block) {
  constexpr uint64_t kGoldenRatio = 0x9e3779b97f4a7c15;
  return lanes.each([=](int lane) {
    const uint64_t counter = static_cast<uint64_t>(8 * block + lane / 2 + 1);
    return static_cast<uint32_t>(mix(seed + kGoldenRatio * counter) >> (32 * (lane % 2)));
  });
}

// The random bits of one block: the sign of element (row, lane) is bit `row` of the lane's word.
template <typename Lanes>
struct QuantRandom {
  typename Lanes::Word signs = {};
  typename Lanes::Word noise = {};

  ISTHMUS_QUANT QuantRandom(const Lanes& lanes, const QuantSettings& settings, uint64_t seed, int64_t block) {
    if (settings.rotate) {
      signs = random_words(lanes, seed, block);
    }
    if (settings.stochastic) {
      noise = random_words(lanes, ~seed, block);
    }
  }
};

template <typename Lanes>
ISTHMUS_QUANT typename Lanes::Float flip_signs(const Lanes& lanes, typename Lanes::Float value,
                                               typename Lanes::Word signs, int row) {
  return lanes.floats(lanes.bits(value) ^ ((signs << (31 - row)) & kQuantSign));
}

// Between -1/2 and 1/2, for one row: the finaliser of MurmurHash3 over the row's number and the lane's random bits.
template <typename Lanes>
ISTHMUS_QUANT typename Lanes::Float rounding_noise(const Lanes& lanes, typename Lanes::Word noise, int row) {
  constexpr uint32_t kOne = 0x3f800000;
  typename Lanes::Word word = noise ^ static_cast<uint32_t>(row) * 0x9e3779b9U;
  word = (word ^ (word >> 16)) * 0x85ebca6bU;
  word = (word ^ (word >> 13)) * 0xc2b2ae35U;
  word = word ^ (word >> 16);
  return lanes.floats((word >> 9) | kOne) - 1.5F;
}

// In lanes without bit kDistance: a + b; in the others: b - a; where b is the lane's partner.
template <int kDistance, typename Lanes>
ISTHMUS_QUANT typename Lanes::Float butterfly(const Lanes& lanes, typename Lanes::Float a) {
  const typename Lanes::Word upper = lanes.each([](int lane) { return (lane & kDistance) != 0 ? kQuantSign : 0U; });
  return lanes.template exchange<kDistance>(a) + lanes.floats(lanes.bits(a) ^ upper);
}

// The Hadamard transform without its factor 1 / sqrt(n): stages ascend, lanes first.
template <int kGroupRows, typename Lanes>
ISTHMUS_QUANT void hadamard(const Lanes& lanes, typename Lanes::Float (&rows)[kGroupRows]) {
  ISTHMUS_UNROLL
  for (int r = 0; r < kGroupRows; ++r) {
    rows[r] = butterfly<1>(lanes, rows[r]);
    rows[r] = butterfly<2>(lanes, rows[r]);
    rows[r] = butterfly<4>(lanes, rows[r]);
    rows[r] = butterfly<8>(lanes, rows[r]);
  }
  ISTHMUS_UNROLL
  for (int distance = 1; distance < kGroupRows; distance *= 2) {
    ISTHMUS_UNROLL
    for (int r = 0; r < kGroupRows; ++r) {
      if ((r & distance) == 0) {
        const typename Lanes::Float upper = rows[r + distance];
        rows[r + distance] = rows[r] - upper;
        rows[r] = rows[r] + upper;
      }
    }
  }
}

// In a tree that is the same for all executors.
template <typename Lanes>
ISTHMUS_QUANT float sum_of_lanes(const Lanes& lanes, typename Lanes::Float a) {
  a = a + lanes.template exchange<1>(a);
  a = a + lanes.template exchange<2>(a);
  a = a + lanes.template exchange<4>(a);
  return lanes.common(a + lanes.template exchange<8>(a));
}

// The largest magnitude's bit pattern. That of NaN is above that of Inf.
template <int kGroupRows, typename Lanes>
ISTHMUS_QUANT uint32_t largest_magnitude(const Lanes& lanes, const typename Lanes::Float (&rows)[kGroupRows]) {
  typename Lanes::Word largest = {};
  ISTHMUS_UNROLL
  for (int r = 0; r < kGroupRows; ++r) {
    largest = lanes.max(largest, lanes.bits(rows[r]) & ~kQuantSign);
  }
  const auto with_partner = [&](auto partner) { return lanes.max(largest, lanes.bits(partner)); };
  largest = with_partner(lanes.template exchange<1>(lanes.floats(largest)));
  largest = with_partner(lanes.template exchange<2>(lanes.floats(largest)));
  largest = with_partner(lanes.template exchange<4>(lanes.floats(largest)));
  return lanes.common(with_partner(lanes.template exchange<8>(lanes.floats(largest))));
}

template <int kGroupRows, typename Lanes>
ISTHMUS_QUANT float energy_of(const Lanes& lanes, const typename Lanes::Float (&rows)[kGroupRows]) {
  typename Lanes::Float sum = rows[0] * rows[0];
  ISTHMUS_UNROLL
  for (int r = 1; r < kGroupRows; ++r) {
    sum = sum + rows[r] * rows[r];
  }
  return sum_of_lanes(lanes, sum);
}

// A power of two that brings a magnitude into [1, 4), or as near as float32 allows.
ISTHMUS_QUANT float normalizer(uint32_t magnitude) {
  const uint32_t exponent = magnitude >> 23;
  return quant_float_of((254 - (exponent > 253 ? 253 : exponent)) << 23);
}

// As it is sent: to nearest even, or up. Of finite numbers that are not negative.
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
  // What is decoded stays below 2^126, and so finite.
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

// kBits bits of each code, from bit `shift` on, 32 / kBits rows a word.
template <int kBits, typename Lanes>
ISTHMUS_QUANT void pack_plane(const Lanes& lanes, const typename Lanes::Word* codes, int shift, bool present,
                              uint32_t* words) {
  constexpr int kRowsOfWord = 32 / kBits;
  constexpr uint32_t kMask = (1U << kBits) - 1;
  ISTHMUS_UNROLL
  for (int word = 0; word < kBits; ++word) {
    typename Lanes::Word packed = {};
    ISTHMUS_UNROLL
    for (int r = 0; r < kRowsOfWord; ++r) {
      packed = packed | (((codes[word * kRowsOfWord + r] >> shift) & kMask) << (kBits * r));
    }
    lanes.store(packed, words + int64_t{word} * kQuantLanes, present);
  }
}
template <int kBits, typename Lanes>
ISTHMUS_QUANT void unpack_plane(const Lanes& lanes, const uint32_t* words, int shift, bool present,
                                typename Lanes::Word* codes) {
  constexpr int kRowsOfWord = 32 / kBits;
  constexpr uint32_t kMask = (1U << kBits) - 1;
  ISTHMUS_UNROLL
  for (int word = 0; word < kBits; ++word) {
    const typename Lanes::Word packed = lanes.load(words + int64_t{word} * kQuantLanes, present);
    ISTHMUS_UNROLL
    for (int r = 0; r < kRowsOfWord; ++r) {
      const typename Lanes::Word bits = ((packed >> (kBits * r)) & kMask) << shift;
      typename Lanes::Word& code = codes[word * kRowsOfWord + r];
      code = shift == 0 ? bits : code | bits;
    }
  }
}

// Three bits are a plane of the lower two and one of the highest.
template <typename Lanes>
ISTHMUS_QUANT void pack_codes(const Lanes& lanes, int bits, const typename Lanes::Word* codes, bool present,
                              uint32_t* words) {
  switch (bits) {
    case 1:
      return pack_plane<1>(lanes, codes, 0, present, words);
    case 2:
      return pack_plane<2>(lanes, codes, 0, present, words);
    case 3:
      pack_plane<2>(lanes, codes, 0, present, words);
      return pack_plane<1>(lanes, codes, 2, present, words + int64_t{2} * kQuantLanes);
    case 4:
      return pack_plane<4>(lanes, codes, 0, present, words);
    default:
      return pack_plane<8>(lanes, codes, 0, present, words);
  }
}
template <typename Lanes>
ISTHMUS_QUANT void unpack_codes(const Lanes& lanes, int bits, const uint32_t* words, bool present,
                                typename Lanes::Word* codes) {
  switch (bits) {
    case 1:
      return unpack_plane<1>(lanes, words, 0, present, codes);
    case 2:
      return unpack_plane<2>(lanes, words, 0, present, codes);
    case 3:
      unpack_plane<2>(lanes, words, 0, present, codes);
      return unpack_plane<1>(lanes, words + int64_t{2} * kQuantLanes, 2, present, codes);
    case 4:
      return unpack_plane<4>(lanes, words, 0, present, codes);
    default:
      return unpack_plane<8>(lanes, words, 0, present, codes);
  }
}

// Encodes the first `num_groups` groups of a block, the rest as missing; of none nothing is written. `scales` and
// `words` (kQuantLanes * bits) are the block's own. load(row) gives a row of the block; with a row that is missing,
// zeros. keep(row, value) is called for each row, if Keep::kWanted, with what the receiver decodes; not for groups with
// NaN or Inf, nor for missing ones. Returns how many groups hold NaN or Inf.
template <int kGroupRows, bool kRotate, typename Lanes, typename Load, typename Keep>
ISTHMUS_QUANT int encode_block(const Lanes& lanes, const Quantizer& quantizer, uint64_t seed, int64_t block,
                               int num_groups, const Load& load, const Keep& keep, void* scales, uint32_t* words) {
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

// Decodes the first `num_groups` groups of a block. put(row, value, present) is called for each row of the block: for
// one of a missing group with false.
template <int kGroupRows, bool kRotate, typename Lanes, typename Put>
ISTHMUS_QUANT void decode_block(const Lanes& lanes, const Quantizer& quantizer, uint64_t seed, int64_t block,
                                int num_groups, const void* scales, const uint32_t* words, const Put& put) {
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

#undef ISTHMUS_QUANT
