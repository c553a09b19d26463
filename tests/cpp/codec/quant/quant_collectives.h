// Whole collectives with codec quant as docs/algorithms.md, docs/quant.md and docs/packet_format.md describe them,
// written for reading: all ranks in one place, one value after the other. It takes element types and
// the hash of a unit's key from the library; segments, owners, places, seeds, order of sums and scaling are derived
// anew.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "isthmus/options.h"
#include "isthmus/unit.h"
#include "tests/cpp/codec/quant/quant_reference.h"
#include "tests/cpp/support/typed_data.h"

namespace isthmus::reference {

using Floats = std::vector<float>;

inline QuantParameters parameters_of(const Options& options) {
  return {.bits = static_cast<int>(options.bits), .error_feedback = options.error_feedback == "on"};
}

// The parts that a piece is cut into, as (first element, elements). wanted: options.segments.
inline std::vector<std::pair<int64_t, int64_t>> cut_into_segments(int64_t piece_elements, int64_t wanted) {
  const int64_t count = wanted != 0 ? wanted : std::min<int64_t>(std::max<int64_t>(piece_elements / 262144, 1), 8);
  int64_t length = (piece_elements + count - 1) / count;
  while (length == 0 || length % 4096 != 0) {
    ++length;
  }
  std::vector<std::pair<int64_t, int64_t>> segments;
  for (int64_t begin = 0; begin < piece_elements || segments.empty(); begin += length) {
    segments.emplace_back(begin, std::min(length, piece_elements - begin));
  }
  return segments;
}

// What one unit's reductions give, step after step. nodes[n]: the ranks of node n, ascending; nodes by their lowest
// rank.
class QuantCollective {
 public:
  QuantCollective(std::vector<std::vector<int>> nodes, const Options& options, const UnitKey& key)
      : nodes_(std::move(nodes)), options_(options), key_(key) {}

  // gradients[r]: rank r's. Returns every rank's shard.
  std::vector<test::Array> reduce_scatter(const std::vector<test::Array>& gradients, double scale) {
    std::vector<test::Array> shards;
    for (const Floats& result : reduce(gradients, scale)) {
      shards.push_back(in_type_of_unit(result));
    }
    ++step_;
    return shards;
  }

  // What every rank has.
  test::Array all_reduce(const std::vector<test::Array>& gradients, double scale) {
    const std::vector<Floats> results = reduce(gradients, scale);
    Floats all;
    for (int owner = 0; owner < num_ranks(); ++owner) {  // encodes its chunk once more
      const Floats arrived = sent(results[owner], result_residuals_[owner], node_of(owner), 0, ~key_.hash());
      for (const float value : arrived) {
        all.push_back(0 + value);  // which makes a zero positive
      }
    }
    all.resize(static_cast<size_t>(key_.num_elements));
    ++step_;
    return in_type_of_unit(all);
  }

 private:
  int num_nodes() const { return static_cast<int>(nodes_.size()); }
  int num_ranks() const { return static_cast<int>(nodes_.size() * nodes_[0].size()); }
  int64_t chunk_elements() const { return (key_.num_elements + num_ranks() - 1) / num_ranks(); }
  int node_of(int rank) const {
    int node = 0;
    while (std::find(nodes_[node].begin(), nodes_[node].end(), rank) == nodes_[node].end()) {
      ++node;
    }
    return node;
  }

  // Every rank's chunk, scaled, in float32.
  std::vector<Floats> reduce(const std::vector<test::Array>& gradients, double scale) {
    std::vector<Floats> results;
    for (int owner = 0; owner < num_ranks(); ++owner) {
      Floats sum = sum_of_pieces(gradients, owner);
      for (float& value : sum) {
        value *= static_cast<float>(scale);
      }
      results.push_back(sum);
    }
    return results;
  }

  // The own node's piece as it is, and what arrives of the other nodes', in their order.
  Floats sum_of_pieces(const std::vector<test::Array>& gradients, int owner) {
    const int own_node = node_of(owner);
    Floats sum = piece_of(gradients, own_node, owner);
    for (int node = 0; node < num_nodes(); ++node) {
      if (node != own_node) {
        add_to(sum, arrived_piece(gradients, node, owner));
      }
    }
    return sum;
  }

  // The owner's chunk, summed over the ranks of one node in their order.
  Floats piece_of(const std::vector<test::Array>& gradients, int node, int owner) const {
    Floats sum;
    for (const int rank : nodes_[node]) {
      std::vector<double> values = gradients[rank].values();
      values.resize(static_cast<size_t>(num_ranks() * chunk_elements()));  // zeros
      const auto begin = values.begin() + owner * chunk_elements();
      const Floats chunk(begin, begin + chunk_elements());
      if (sum.empty()) {
        sum = chunk;
      } else {
        add_to(sum, chunk);
      }
    }
    return sum;
  }

  // What the owner decodes of a node's piece: segment by segment.
  Floats arrived_piece(const std::vector<test::Array>& gradients, int node, int owner) {
    const Floats piece = piece_of(gradients, node, owner);
    Floats& residual = residuals_[{node, owner}];
    residual.resize(piece.size());
    Floats arrived;
    uint8_t segment = 0;
    for (const auto& [begin, count] : cut_into_segments(chunk_elements(), options_.segments)) {
      Floats residual_of_segment(residual.begin() + begin, residual.begin() + begin + count);
      const Floats values(piece.begin() + begin, piece.begin() + begin + count);
      const Floats decoded = sent(values, residual_of_segment, node, segment++, key_.hash());
      std::copy(residual_of_segment.begin(), residual_of_segment.end(), residual.begin() + begin);
      arrived.insert(arrived.end(), decoded.begin(), decoded.end());
    }
    return arrived;
  }

  // What arrives of `values` that a node encodes. residual: of as many elements, or empty before the first step.
  Floats sent(const Floats& values, Floats& residual, int sender, uint8_t segment, uint64_t unit_hash) const {
    QuantParameters parameters = parameters_of(options_);
    parameters.unit_hash = unit_hash;
    parameters.step = step_;
    parameters.segment = segment;
    parameters.sender = static_cast<uint16_t>(sender);
    residual.resize(parameters.error_feedback ? values.size() : 0);
    return encode_quant(parameters, values, residual).arrives;
  }

  static void add_to(Floats& sum, const Floats& values) {
    for (size_t i = 0; i < sum.size(); ++i) {
      sum[i] += values[i];
    }
  }

  // Rounded once.
  test::Array in_type_of_unit(const Floats& values) const {
    return {std::vector<double>(values.begin(), values.end()), key_.dtype};
  }

  const std::vector<std::vector<int>> nodes_;
  const Options options_;
  const UnitKey key_;
  uint64_t step_ = 0;
  std::map<std::pair<int, int>, Floats> residuals_;  // of (sending node, owner)
  std::map<int, Floats> result_residuals_;           // of the owner
};

}  // namespace isthmus::reference
