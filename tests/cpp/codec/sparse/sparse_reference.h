// Codec sparse as docs/sparse.md and docs/packet_format.md describe it, written for reading: sorting, and bytes at
// named offsets. Slow on purpose. Shares no code with the library but for its constants' values.
#pragma once

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <limits>
#include <string>
#include <vector>

#include "tests/cpp/codec/tagc/tagc_reference.h"  // the checksum, and bytes at offsets

namespace isthmus::reference {

struct SparseParameters {
  double sparsity = .9875;
  std::string value_type = "bf16";  // fp32, bf16, int8
  uint64_t unit_hash = 0;
  uint64_t step = 0;
  uint8_t segment = 0;
  uint16_t sender = 0;
};

struct SparseResult {
  std::vector<uint8_t> packet;
  std::vector<float> arrives;  // 0 where nothing is sent, NaN in blocks that are flagged
  int64_t kept_elements = 0;
  int64_t non_finite_blocks = 0;
};

inline int64_t sparse_keep(double sparsity, int64_t block_elements) {
  const auto keep = static_cast<int64_t>(std::floor((1 - sparsity) * block_elements + .5 + 1e-6));
  return std::min(std::max<int64_t>(keep, 1), block_elements);
}

// The bits of the bfloat16 nearest to a finite value, the even one of two; the largest finite one where that is Inf.
inline uint16_t nearest_bfloat16(float value) {
  const double exact = std::fabs(static_cast<double>(value));
  int exponent = 0;
  std::frexp(exact, &exponent);
  const double unit = std::ldexp(1.0, std::max(exponent - 8, -133));  // of the 8 significant bits
  const double rounded = std::min(std::nearbyint(exact / unit) * unit, 0x1.fep127);
  const auto magnitude_bits = static_cast<uint16_t>(std::bit_cast<uint32_t>(static_cast<float>(rounded)) >> 16);
  return static_cast<uint16_t>(magnitude_bits | (std::signbit(value) ? 0x8000 : 0));
}

inline float value_of_bfloat16(uint16_t bits) { return std::bit_cast<float>(static_cast<uint32_t>(bits) << 16); }

// The offsets of the `keep` largest magnitudes, of equal ones the first; ascending.
inline std::vector<int64_t> largest_of_block(const std::vector<float>& sums, int64_t keep) {
  std::vector<int64_t> order;
  for (size_t i = 0; i < sums.size(); ++i) {
    order.push_back(static_cast<int64_t>(i));
  }
  std::stable_sort(order.begin(), order.end(),
                   [&](int64_t a, int64_t b) { return magnitude(sums[a]) > magnitude(sums[b]); });
  order.resize(keep);
  std::sort(order.begin(), order.end());
  return order;
}

// Appends and looks back at nothing: packets are written front to back.
class SparseSections {
 public:
  std::vector<uint8_t> counts;
  std::vector<uint8_t> scales;
  std::vector<uint8_t> offsets;
  std::vector<uint8_t> values;

  template <typename T>
  static void append(std::vector<uint8_t>& section, T value) {
    section.resize(section.size() + sizeof(T));
    std::memcpy(section.data() + section.size() - sizeof(T), &value, sizeof(T));
  }
  static void pad(std::vector<uint8_t>& bytes, size_t multiple) {
    while (bytes.size() % multiple != 0) {
      bytes.push_back(0);
    }
  }
};

// One value as it is sent, appended to the section of values; returns what it decodes to.
inline float append_sparse_value(const std::string& value_type, float value, float scale, SparseSections& sections) {
  if (value_type == "fp32") {
    SparseSections::append(sections.values, value);
    return value;
  }
  if (value_type == "bf16") {
    const uint16_t bits = nearest_bfloat16(value);
    SparseSections::append(sections.values, bits);
    return value_of_bfloat16(bits);
  }
  const float quotient = scale == 0 ? 0 : value / scale;
  const auto integer = static_cast<int8_t>(std::nearbyint(std::min(std::max(quotient, -127.0F), 127.0F)));
  SparseSections::append(sections.values, integer);
  return static_cast<float>(integer) * scale;
}

inline void append_flagged_block(const SparseParameters& parameters, int64_t keep, size_t count_bytes,
                                 SparseSections& sections) {
  const size_t value_bytes = parameters.value_type == "fp32" ? 4 : parameters.value_type == "bf16" ? 2 : 1;
  sections.counts.resize(sections.counts.size() + 4 * count_bytes, 0xff);
  sections.offsets.resize(sections.offsets.size() + keep);
  sections.values.resize(sections.values.size() + keep * value_bytes);
  if (parameters.value_type == "int8") {
    SparseSections::append<uint16_t>(sections.scales, 0);
  }
}

// The packet of codec sparse. `residual` is updated; empty: without error feedback.
inline SparseResult encode_sparse(const SparseParameters& parameters, const std::vector<float>& piece,
                                  std::vector<float>& residual) {
  const auto num_elements = static_cast<int64_t>(piece.size());
  const int64_t whole_keep = sparse_keep(parameters.sparsity, 1024);
  const size_t count_bytes = whole_keep < 256 ? 1 : 2;
  int64_t keep = 0;
  SparseResult result;
  result.arrives.resize(piece.size());
  SparseSections sections;
  for (int64_t first = 0; first < num_elements; first += 1024) {
    const int64_t block_elements = std::min<int64_t>(1024, num_elements - first);
    keep = sparse_keep(parameters.sparsity, block_elements);
    std::vector<float> sums;
    float largest = 0;
    bool finite = true;
    for (int64_t i = first; i < first + block_elements; ++i) {
      sums.push_back(residual.empty() ? piece[i] : piece[i] + residual[i]);
      finite = finite && std::isfinite(sums.back());
      largest = std::max(largest, std::fabs(sums.back()));
    }
    if (!finite) {
      append_flagged_block(parameters, keep, count_bytes, sections);
      std::fill_n(result.arrives.begin() + first, block_elements, std::numeric_limits<float>::quiet_NaN());
      ++result.non_finite_blocks;
      continue;
    }
    const uint16_t scale_bits = nearest_bfloat16(largest / 127);
    if (parameters.value_type == "int8") {
      SparseSections::append(sections.scales, scale_bits);
    }
    std::vector<uint16_t> counts(4);
    std::copy(sums.begin(), sums.end(), residual.empty() ? sums.begin() : residual.begin() + first);
    for (const int64_t offset : largest_of_block(sums, keep)) {
      ++counts[offset / 256];
      sections.offsets.push_back(static_cast<uint8_t>(offset % 256));
      const float sent =
          append_sparse_value(parameters.value_type, sums[offset], value_of_bfloat16(scale_bits), sections);
      result.arrives[first + offset] = sent;
      if (!residual.empty()) {
        residual[first + offset] = sums[offset] - sent;
      }
    }
    for (const uint16_t count : counts) {
      if (count_bytes == 1) {
        sections.counts.push_back(static_cast<uint8_t>(count));
      } else {
        SparseSections::append(sections.counts, count);
      }
    }
    result.kept_elements += keep;
  }

  result.packet.resize(48);
  put<uint32_t>(result.packet, 0, 0x4d485349);
  put<uint8_t>(result.packet, 4, 6);  // version
  put<uint8_t>(result.packet, 5, 4);  // codec sparse
  put<uint8_t>(result.packet, 6, 1);  // float32
  put<uint8_t>(result.packet, 7, parameters.segment);
  put<uint64_t>(result.packet, 8, parameters.unit_hash);
  put<uint64_t>(result.packet, 16, parameters.step);
  put<uint64_t>(result.packet, 24, piece.size());
  put<uint16_t>(result.packet, 30, parameters.sender);
  put<uint16_t>(result.packet, 32, static_cast<uint16_t>(whole_keep));
  put<uint16_t>(result.packet, 34, static_cast<uint16_t>(keep));
  put<uint8_t>(result.packet, 36, parameters.value_type == "fp32" ? 1 : parameters.value_type == "bf16" ? 2 : 3);
  for (const std::vector<uint8_t>* section :
       {&sections.counts, &sections.scales, &sections.offsets, &sections.values}) {
    result.packet.insert(result.packet.end(), section->begin(), section->end());
    SparseSections::pad(result.packet, 8);
  }
  SparseSections::pad(result.packet, 16);
  put<uint64_t>(result.packet, 40, checksum_of_docs(result.packet, 48));
  return result;
}

}  // namespace isthmus::reference
