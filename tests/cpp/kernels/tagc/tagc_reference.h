// Codec tagc as docs/tagc.md and docs/packet_format.md describe it, written for reading: sorting, maps and bytes at
// named offsets. Slow on purpose. Shares no code with the library but for its constants' values.
#pragma once

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <limits>
#include <map>
#include <set>
#include <vector>

#include "tests/cpp/codec/packet_reference.h"

namespace isthmus::reference {

struct TagcParameters {
  double ratio = 10;
  double sparsity = .9875;
  int64_t block_elements = 0;
  int64_t peel_rounds = 64;
  uint64_t unit_hash = 0;
  uint64_t step = 0;
  uint16_t sender = 0;
  uint8_t segment = 0;
};

inline uint32_t magnitude(float value) { return std::bit_cast<uint32_t>(value) & 0x7fffffff; }

inline int64_t blocks_of(int64_t num_elements, int64_t block_elements) {
  return (num_elements + block_elements - 1) / block_elements;
}

inline int64_t keep_of(const TagcParameters& parameters, int64_t num_elements) {
  const auto share = static_cast<int64_t>(std::floor((1 - parameters.sparsity) * num_elements + 1e-6));
  return std::min(num_elements, std::max<int64_t>(1, share));
}

inline int64_t rows_of(const TagcParameters& parameters, int64_t num_elements, int64_t columns) {
  if (num_elements == 0) {
    return 0;
  }
  const auto blocks = static_cast<double>(blocks_of(num_elements, columns));
  return std::max<int64_t>(3, static_cast<int64_t>(std::ceil(blocks / parameters.ratio)));
}

// The geometry of one piece, and the place of each element in the sketch.
class TagcGeometry {
 public:
  TagcGeometry(const TagcParameters& parameters, int64_t num_elements)
      : parameters_(parameters), num_elements_(num_elements), columns_(parameters.block_elements) {
    if (columns_ == 0) {
      for (columns_ = 1024; columns_ > 64 && rows_of(parameters, num_elements, columns_) < 96;) {
        columns_ /= 2;
      }
    }
  }

  int64_t num_elements() const { return num_elements_; }
  int64_t columns() const { return columns_; }
  int64_t num_blocks() const { return blocks_of(num_elements_, columns_); }
  int64_t num_rows() const { return rows_of(parameters_, num_elements_, columns_); }
  int64_t num_cells() const { return num_rows() * columns_; }
  int64_t index_words() const { return num_blocks() * columns_ / 64; }
  int64_t keep() const { return keep_of(parameters_, num_elements_); }

  uint64_t hash(int64_t block, int i) const {
    const uint64_t seed = parameters_.unit_hash ^ ((parameters_.step + 1) * 0xd1342543de82ef95);
    return scramble(seed + 0x9e3779b97f4a7c15 * (3 * block + i + 1));
  }
  // The i-th cell of an element, as a position in the sketch: its row lies in the i-th third of the rows.
  int64_t cell(int64_t element, int i) const {
    const int64_t first = num_rows() * i / 3;
    const int64_t end = num_rows() * (i + 1) / 3;
    const int64_t row = first + static_cast<int64_t>(((hash(element / columns_, i) >> 32) * (end - first)) >> 32);
    return row * columns_ + element % columns_;
  }
  float sign(int64_t element, int i) const { return (hash(element / columns_, i) & 1) != 0 ? -1.0F : 1.0F; }

 private:
  TagcParameters parameters_;
  int64_t num_elements_;
  int64_t columns_;
};

// An element that was alone in its i-th cell when its round began (the lowest such i).
struct PeeledElement {
  int64_t element;
  int i;
};

struct Peeling {
  std::vector<std::vector<PeeledElement>> rounds;
  std::set<int64_t> left;
};

inline Peeling peel(const TagcGeometry& geometry, std::set<int64_t> elements, int64_t max_rounds) {
  Peeling peeling;
  for (int64_t round = 0; round < max_rounds; ++round) {
    std::vector<int> degree(geometry.num_cells());
    for (const int64_t element : elements) {
      for (int i = 0; i < 3; ++i) {
        ++degree[geometry.cell(element, i)];
      }
    }
    std::vector<PeeledElement> peeled;
    for (const int64_t element : elements) {
      for (int i = 0; i < 3; ++i) {
        if (degree[geometry.cell(element, i)] == 1) {
          peeled.push_back({element, i});
          break;
        }
      }
    }
    if (peeled.empty()) {
      break;
    }
    for (const PeeledElement& key : peeled) {
      elements.erase(key.element);
    }
    peeling.rounds.push_back(peeled);
  }
  peeling.left = elements;
  return peeling;
}

// Of `elements`, those that are sent: all that peel, and of the rest each that has a cell which none of the rest before
// it took, if these peel in the rounds that are left. The rest comes in ascending order, but beginning with the block
// that has precedence in this step.
inline std::set<int64_t> choose_peelable(const TagcGeometry& geometry, const std::set<int64_t>& elements,
                                         int64_t max_rounds, uint64_t step) {
  const Peeling first = peel(geometry, elements, max_rounds);
  std::vector<int64_t> rest(first.left.begin(), first.left.end());
  const auto first_block = static_cast<int64_t>(((step * 0x9e3779b9 & 0xffffffff) * geometry.num_blocks()) >> 32);
  std::rotate(rest.begin(), std::lower_bound(rest.begin(), rest.end(), first_block * geometry.columns()), rest.end());
  std::set<int64_t> taken;
  std::set<int64_t> admitted;
  for (const int64_t element : rest) {
    bool has_free_cell = false;
    for (int i = 0; i < 3; ++i) {
      has_free_cell = has_free_cell || taken.count(geometry.cell(element, i)) == 0;
    }
    if (has_free_cell) {
      admitted.insert(element);
      for (int i = 0; i < 3; ++i) {
        taken.insert(geometry.cell(element, i));
      }
    }
  }
  const Peeling second = peel(geometry, admitted, max_rounds - static_cast<int64_t>(first.rounds.size()));
  std::set<int64_t> sent = elements;
  for (const int64_t element : first.left) {
    if (admitted.count(element) == 0 || second.left.count(element) != 0) {
      sent.erase(element);
    }
  }
  return sent;
}

// What the threshold chooses from piece + residual.
struct Chosen {
  std::vector<float> sums;
  std::set<int64_t> kept;
  std::set<int64_t> flagged_blocks;
  std::set<int64_t> non_finite;
};

inline Chosen choose(const TagcGeometry& geometry, const std::vector<float>& piece,
                     const std::vector<float>& residual) {
  Chosen chosen;
  for (int64_t i = 0; i < geometry.num_elements(); ++i) {
    chosen.sums.push_back(piece[i] + residual[i]);
    if (!std::isfinite(chosen.sums[i])) {
      chosen.non_finite.insert(i);
      chosen.flagged_blocks.insert(i / geometry.columns());
    }
  }
  std::vector<int64_t> order;
  for (int64_t i = 0; i < geometry.num_elements(); ++i) {
    if (magnitude(chosen.sums[i]) != 0 && chosen.flagged_blocks.count(i / geometry.columns()) == 0) {
      order.push_back(i);
    }
  }
  std::stable_sort(order.begin(), order.end(),
                   [&](int64_t a, int64_t b) { return magnitude(chosen.sums[a]) > magnitude(chosen.sums[b]); });
  order.resize(std::min<size_t>(order.size(), geometry.keep()));
  chosen.kept.insert(order.begin(), order.end());
  return chosen;
}

// residual becomes the sum where nothing was sent, else 0; blocks with a flag keep theirs.
inline void update_residual(const TagcGeometry& geometry, const Chosen& chosen, std::vector<float>& residual) {
  for (int64_t i = 0; i < geometry.num_elements(); ++i) {
    if (chosen.flagged_blocks.count(i / geometry.columns()) == 0) {
      residual[i] = chosen.kept.count(i) != 0 ? 0 : chosen.sums[i];
    }
  }
}

inline void set_bit(std::vector<uint8_t>& bytes, int64_t offset, int64_t bit) {
  bytes[offset + bit / 8] |= static_cast<uint8_t>(1 << bit % 8);
}

struct TwoTierResult {
  std::vector<uint8_t> packet;
  std::map<int64_t, float> arrives;
  int64_t kept_elements = 0;
  int64_t held_back_elements = 0;
  int64_t non_finite_blocks = 0;
};

// The packet of codec tagc. `residual` is updated.
inline TwoTierResult encode_two_tier(const TagcParameters& parameters, const std::vector<float>& piece,
                                     std::vector<float>& residual) {
  const TagcGeometry geometry(parameters, static_cast<int64_t>(piece.size()));
  Chosen chosen = choose(geometry, piece, residual);
  const size_t num_chosen = chosen.kept.size();
  chosen.kept = choose_peelable(geometry, chosen.kept, parameters.peel_rounds, parameters.step);
  update_residual(geometry, chosen, residual);

  const int64_t flags_offset = 64;
  const int64_t index_offset = flags_offset + up_to_64((geometry.num_blocks() + 63) / 64 * 8);
  const int64_t sketch_offset = index_offset + up_to_64(geometry.index_words() * 8);
  TwoTierResult result;
  result.packet.resize(sketch_offset + geometry.num_cells() * 4);
  put<uint8_t>(result.packet, 32, static_cast<uint8_t>(std::log2(geometry.columns())));
  put<uint16_t>(result.packet, 33, static_cast<uint16_t>(parameters.peel_rounds));
  put<uint32_t>(result.packet, 36, static_cast<uint32_t>(geometry.num_rows()));
  for (const int64_t block : chosen.flagged_blocks) {
    set_bit(result.packet, flags_offset, block);
  }
  for (const int64_t element : chosen.non_finite) {
    set_bit(result.packet, index_offset, element);
    result.arrives[element] = std::numeric_limits<float>::quiet_NaN();
  }
  for (const int64_t element : chosen.kept) {
    set_bit(result.packet, index_offset, element);
    result.arrives[element] = chosen.sums[element];
    const auto bits = std::bit_cast<uint32_t>(chosen.sums[element]);
    for (int i = 0; i < 3; ++i) {
      const int64_t cell_offset = sketch_offset + geometry.cell(element, i) * 4;
      for (int64_t byte = 0; byte < 4; ++byte) {
        result.packet[cell_offset + byte] ^= static_cast<uint8_t>(bits >> (8 * byte));
      }
    }
  }
  put_header(result.packet, 2, parameters, geometry.num_elements());
  result.kept_elements = static_cast<int64_t>(chosen.kept.size());
  result.held_back_elements = static_cast<int64_t>(num_chosen - chosen.kept.size());
  result.non_finite_blocks = static_cast<int64_t>(chosen.flagged_blocks.size());
  return result;
}

}  // namespace isthmus::reference
