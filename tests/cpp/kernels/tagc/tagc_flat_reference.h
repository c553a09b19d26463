// The single-tier baseline of tagc as docs/tagc.md describes it, written for reading; see tagc_reference.h.
#pragma once

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdint>
#include <limits>
#include <set>
#include <utility>
#include <vector>

#include "tests/cpp/kernels/tagc/tagc_reference.h"

namespace isthmus::reference {

struct FlatChunk {
  std::vector<uint8_t> index;  // one byte an element, 0 or 1
  std::vector<float> sketch;
};

inline FlatChunk encode_flat(const TagcParameters& parameters, const std::vector<float>& chunk,
                             std::vector<float>& residual) {
  const TagcGeometry geometry(parameters, static_cast<int64_t>(chunk.size()));
  const Chosen chosen = choose(geometry, chunk, residual);
  update_residual(geometry, chosen, residual);
  FlatChunk result;
  result.index.resize(geometry.num_blocks() * geometry.columns());
  result.sketch.resize(geometry.num_cells());
  for (const int64_t element : chosen.kept) {
    result.index[element] = 1;
    for (int i = 0; i < 3; ++i) {
      result.sketch[geometry.cell(element, i)] += geometry.sign(element, i) * chosen.sums[element];
    }
  }
  for (const int64_t element : chosen.non_finite) {
    result.index[element] = 1;
    for (int i = 0; i < 3; ++i) {
      result.sketch[geometry.cell(element, i)] = std::numeric_limits<float>::quiet_NaN();
    }
  }
  return result;
}

// marked: the elements in the merged index; sketch: summed. Returns the sum, and how many elements were estimated.
inline std::pair<std::vector<float>, int64_t> decode_flat(const TagcParameters& parameters, int64_t num_elements,
                                                          const std::set<int64_t>& marked, std::vector<float> sketch) {
  const TagcGeometry geometry(parameters, num_elements);
  const Peeling peeling = peel(geometry, marked, parameters.peel_rounds);
  std::vector<float> out(num_elements);
  for (const std::vector<PeeledElement>& round : peeling.rounds) {
    for (const auto& [element, alone] : round) {
      out[element] = geometry.sign(element, alone) * sketch[geometry.cell(element, alone)];
      for (int i = 0; i < 3; ++i) {
        sketch[geometry.cell(element, i)] -= geometry.sign(element, i) * out[element];
      }
    }
  }
  for (const int64_t element : peeling.left) {
    std::array<float, 3> estimates = {};
    bool is_nan = false;
    for (int i = 0; i < 3; ++i) {
      estimates[i] = geometry.sign(element, i) * sketch[geometry.cell(element, i)];
      is_nan = is_nan || std::isnan(estimates[i]);
    }
    if (!is_nan) {
      std::sort(estimates.begin(), estimates.end());
    }
    out[element] = is_nan ? std::numeric_limits<float>::quiet_NaN() : estimates[1];
  }
  return {out, static_cast<int64_t>(peeling.left.size())};
}

}  // namespace isthmus::reference
