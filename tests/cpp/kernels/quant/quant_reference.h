// Codec quant as docs/quant.md and docs/packet_format.md describe it, written for reading: one element after the other,
// bytes at named offsets. Slow on purpose. Shares no code with the library but for its constants' values.
#pragma once

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <limits>
#include <vector>

#include "tests/cpp/codec/packet_reference.h"

namespace isthmus::reference {

// Neighbours with one scale.
constexpr int64_t kGroupElements = 128;

struct QuantParameters {
  int bits = 4;
  bool error_feedback = false;
  uint64_t unit_hash = 0;
  uint64_t step = 0;
  uint8_t segment = 0;
  uint16_t sender = 0;

  int last_code() const { return (1 << bits) - 1; }
  float centre() const { return static_cast<float>(last_code()) / 2; }
};

inline uint64_t seed_of(const QuantParameters& parameters) {
  return scramble(scramble(parameters.unit_hash ^ ((parameters.step + 1) * 0xd1342543de82ef95)) + parameters.segment +
                  uint64_t{256} * parameters.sender);
}

// 512 neighbours are a block: 32 rows of 16 columns. Each column of each block has 32 random bits.
inline uint32_t column_bits(uint64_t seed, int64_t element) {
  const int64_t block = element / 512;
  const int64_t column = element % 16;
  const uint64_t two_columns = scramble(seed + 0x9e3779b97f4a7c15 * (8 * block + column / 2 + 1));
  return static_cast<uint32_t>(column % 2 == 0 ? two_columns : two_columns >> 32);
}

inline int64_t row_of(int64_t element) { return element % 512 / 16; }

inline float sign_of(const QuantParameters& parameters, int64_t element) {
  return (column_bits(seed_of(parameters), element) >> row_of(element) & 1) != 0 ? -1.0F : 1.0F;
}

// In place, without the factor 1 / sqrt(n).
inline void hadamard(std::vector<float>& values) {
  for (size_t distance = 1; distance < values.size(); distance *= 2) {
    for (size_t i = 0; i < values.size(); ++i) {
      if ((i & distance) == 0) {
        const float a = values[i];
        const float b = values[i + distance];
        values[i] = a + b;
        values[i + distance] = a - b;
      }
    }
  }
}

// Column by column, then neighbours, neighbours of neighbours, ...
inline float sum_of(const std::vector<float>& terms) {
  std::vector<float> columns(terms.begin(), terms.begin() + 16);
  for (size_t i = 16; i < terms.size(); ++i) {
    columns[i % 16] += terms[i];
  }
  while (columns.size() > 1) {
    std::vector<float> sums;
    for (size_t i = 0; i < columns.size(); i += 2) {
      sums.push_back(columns[i] + columns[i + 1]);
    }
    columns = sums;
  }
  return columns[0];
}

inline float sum_of_products(const std::vector<float>& a, const std::vector<float>& b) {
  std::vector<float> products;
  for (size_t i = 0; i < a.size(); ++i) {
    products.push_back(a[i] * b[i]);
  }
  return sum_of(products);
}

inline float largest_of(const std::vector<float>& values) {
  float largest = 0;
  for (const float value : values) {
    largest = std::max(largest, std::fabs(value));
  }
  return largest;
}

inline std::vector<float> transformed(const QuantParameters& parameters, std::vector<float> values, int64_t first,
                                      float factor) {
  for (size_t i = 0; i < values.size(); ++i) {
    values[i] *= factor * sign_of(parameters, first + static_cast<int64_t>(i));
  }
  hadamard(values);
  return values;
}

// The power of two that brings the largest of these into [1, 4), or as near as float32 has one.
inline float normalizer_of(const std::vector<float>& values) {
  int exponent = -127;
  if (const float largest = largest_of(values); largest >= std::numeric_limits<float>::min()) {
    std::frexp(largest, &exponent);
    exponent -= 1;
  }
  return std::ldexp(1.0F, std::max(-exponent, -126));
}

inline float to_bfloat16(float value) {
  const uint32_t bits = std::bit_cast<uint32_t>(value);
  const uint32_t below = bits & 0xffff0000;
  const uint32_t rest = bits & 0xffff;
  const bool is_odd = (below & 0x10000) != 0;
  const bool away = rest > 0x8000 || (rest == 0x8000 && is_odd);
  return std::bit_cast<float>(below + (away ? 0x10000 : 0));
}

// How far apart levels are when codes are chosen.
inline float step_of(const QuantParameters& parameters, const std::vector<float>& values, float energy) {
  if (parameters.bits == 8) {
    return largest_of(values) / parameters.centre();
  }
  const float steps[] = {0, 1.596F, .9957F, .5860F, .3352F, .1881F, .1041F, .05687F};
  return steps[parameters.bits] * std::sqrt(energy / static_cast<float>(values.size()));
}

struct QuantizedGroup {
  float scale = std::numeric_limits<float>::quiet_NaN();
  std::vector<int> codes;
};

// A group that begins at element `first` of the piece.
inline QuantizedGroup quantize(const QuantParameters& parameters, const std::vector<float>& group, int64_t first) {
  QuantizedGroup quantized;
  quantized.codes.resize(group.size());
  if (!std::all_of(group.begin(), group.end(), [](float value) { return std::isfinite(value); })) {
    return quantized;
  }
  float factor = 1;
  std::vector<float> values = transformed(parameters, group, first, factor);
  float energy = sum_of_products(values, values);
  if (!(energy >= 0x1p-90F && energy <= 0x1p90F)) {
    factor = normalizer_of(group);
    values = transformed(parameters, group, first, factor);
    energy = sum_of_products(values, values);
  }

  const float step = step_of(parameters, values, energy);
  const float inverse = step > 0 ? 1 / step : 0;
  std::vector<float> levels;
  for (size_t i = 0; i < values.size(); ++i) {
    const float place = values[i] * inverse + parameters.centre();
    const float code = std::nearbyint(std::clamp(place, 0.0F, static_cast<float>(parameters.last_code())));
    quantized.codes[i] = static_cast<int>(code);
    levels.push_back(code - parameters.centre());
  }

  const float product = sum_of_products(values, levels);
  const float scale = product > 0 ? energy / product : 0;
  const float n = kGroupElements;
  quantized.scale = to_bfloat16(std::min(scale / factor / n, 0x1p126F / (parameters.centre() * n)));
  return quantized;
}

inline std::vector<float> dequantize(const QuantParameters& parameters, const QuantizedGroup& group, int64_t first) {
  std::vector<float> values;
  for (const int code : group.codes) {
    values.push_back(static_cast<float>(code) - parameters.centre());
  }
  hadamard(values);
  for (size_t i = 0; i < values.size(); ++i) {
    values[i] *= group.scale * sign_of(parameters, first + static_cast<int64_t>(i));
  }
  return values;
}

// Where the sections of a packet begin.
struct QuantSections {
  int64_t scales = 64;
  int64_t codes;
  int64_t tail;
  int64_t end;

  QuantSections(const QuantParameters& parameters, int64_t num_elements) {
    const int64_t groups = num_elements / kGroupElements;
    const int64_t blocks = (groups + 3) / 4;
    codes = scales + up_to_64(groups * 2);
    tail = codes + blocks * 64 * parameters.bits;
    end = tail + up_to_64(num_elements % kGroupElements * 4);
  }
};

// Puts the lowest bits of a code at the place of an element: 32 bits a column, row after row in ascending bits, in as
// many words as it takes. A width that is no power of two is several planes, the widest first, of the lowest bits.
inline void put_code(const QuantParameters& parameters, int64_t element, int code, uint8_t* codes) {
  const auto put = [&](int width, int64_t first_word, int bits) {
    const int64_t rows_of_word = 32 / width;
    const int64_t word = (first_word + row_of(element) / rows_of_word) * 16 + element % 16;
    uint8_t* place = codes + element / 512 * 64 * parameters.bits + 4 * word;
    uint32_t packed = 0;
    std::memcpy(&packed, place, 4);
    packed |= static_cast<uint32_t>(bits) << (width * (row_of(element) % rows_of_word));
    std::memcpy(place, &packed, 4);
  };
  int done = 0;
  for (const int width : {8, 4, 2, 1}) {
    if ((parameters.bits & width) != 0) {
      put(width, done, (code >> done) & ((1 << width) - 1));
      done += width;
    }
  }
}

struct QuantResult {
  std::vector<uint8_t> packet;
  std::vector<float> arrives;     // what the receiver decodes
  int64_t non_finite_groups = 0;  // the tail counts as one
};

// residual: as long as the piece with error feedback, else empty.
inline QuantResult encode_quant(const QuantParameters& parameters, const std::vector<float>& piece,
                                std::vector<float>& residual) {
  const auto num_elements = static_cast<int64_t>(piece.size());
  const QuantSections sections(parameters, num_elements);
  QuantResult result;
  result.packet.resize(sections.end);
  std::vector<float> sums = piece;
  for (size_t i = 0; i < residual.size(); ++i) {
    sums[i] += residual[i];
  }

  const int64_t num_groups = num_elements / kGroupElements;
  for (int64_t g = 0; g < num_groups; ++g) {
    const int64_t first = g * kGroupElements;
    const std::vector<float> group(sums.begin() + first, sums.begin() + first + kGroupElements);
    const QuantizedGroup quantized = quantize(parameters, group, first);
    const uint32_t scale = std::bit_cast<uint32_t>(quantized.scale) >> 16;
    std::memcpy(result.packet.data() + sections.scales + 2 * g, &scale, 2);
    for (int64_t i = 0; i < kGroupElements; ++i) {
      put_code(parameters, first + i, quantized.codes[i], result.packet.data() + sections.codes);
    }
    const std::vector<float> decoded = dequantize(parameters, quantized, first);
    result.arrives.insert(result.arrives.end(), decoded.begin(), decoded.end());
    result.non_finite_groups += std::isnan(quantized.scale);
    for (int64_t i = first; i < first + kGroupElements && !residual.empty(); ++i) {
      if (!std::isnan(quantized.scale)) {
        residual[i] = std::clamp(sums[i] - decoded[i - first], -std::numeric_limits<float>::max(),
                                 std::numeric_limits<float>::max());
      }
    }
  }

  bool tail_is_finite = true;
  for (int64_t i = num_groups * kGroupElements; i < num_elements; ++i) {
    const int64_t of_tail = i - num_groups * kGroupElements;
    std::memcpy(result.packet.data() + sections.tail + 4 * of_tail, &sums[i], 4);
    result.arrives.push_back(sums[i]);
    tail_is_finite = tail_is_finite && std::isfinite(sums[i]);
    if (!residual.empty() && std::isfinite(sums[i])) {
      residual[i] = 0;
    }
  }
  result.non_finite_groups += !tail_is_finite;
  put<uint8_t>(result.packet, 32, static_cast<uint8_t>(parameters.bits));
  put<uint8_t>(result.packet, 33, 7);  // 2^7 elements in a group
  put<uint8_t>(result.packet, 34, 9);  // rotated, unbiased
  put_header(result.packet, 3, parameters, num_elements);
  return result;
}

}  // namespace isthmus::reference
