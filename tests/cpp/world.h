// A communicator for every rank, over in-process tiers, and gradients for them.
#pragma once

#include <algorithm>
#include <chrono>
#include <cmath>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "isthmus/communicator.h"
#include "ranks.h"
#include "transport/in_process.h"
#include "typed_data.h"

namespace isthmus::test {

using std::chrono::milliseconds;

inline constexpr milliseconds kTimeout(20000);
inline constexpr milliseconds kShortTimeout(300);

inline Options exact_options() {
  Options options;
  options.codec = "none";
  return options;
}

inline Options lossy_options() {
  Options options;
  options.min_elements = 0;
  return options;
}

using Wrap = std::function<Tiers(int rank, Tiers tiers)>;

// A communicator for every rank of a map, over in-process tiers.
class World {
 public:
  World(const NodeMap& node_map, const Options& options, milliseconds timeout = kTimeout, const Wrap& wrap = {})
      : map(node_map), hub(map, timeout) {
    for (int rank = 0; rank < map.world_size(); ++rank) {
      const Tiers tiers = hub.tiers(map, rank);
      ranks.push_back(std::make_unique<Communicator>(map, rank, wrap ? wrap(rank, tiers) : tiers, options));
    }
  }

  int size() const { return map.world_size(); }

  // Every rank's shard, end to end: where inputs[r] is rank r's gradient.
  std::vector<double> reduce_scatter(const std::vector<Array>& inputs, double scale, bool compress,
                                     const std::string& unit = "unit") {
    std::vector<std::vector<double>> shards(static_cast<size_t>(size()));
    run_ranks_well(size(), [&](int rank) {
      const ConstBuffer gradient = inputs[rank].view();
      Array shard(gradient.num_elements / size(), gradient.dtype);
      ranks[rank]->reduce_scatter(gradient, shard.buffer(), scale, {unit, gradient.num_elements, gradient.dtype},
                                  compress);
      shards[rank] = shard.values();
    });
    std::vector<double> whole;
    for (const std::vector<double>& shard : shards) {
      whole.insert(whole.end(), shard.begin(), shard.end());
    }
    return whole;
  }

  NodeMap map;
  InProcessHub hub;
  std::vector<std::unique_ptr<Communicator>> ranks;
};

inline std::vector<Array> random_inputs(int world_size, int64_t chunk_elements, DataType dtype, uint64_t seed = 1) {
  std::vector<Array> inputs;
  for (int rank = 0; rank < world_size; ++rank) {
    inputs.emplace_back(random_values(world_size * chunk_elements, seed * 1000 + rank), dtype);
  }
  return inputs;
}

// In float64, of the values as they are in their type.
inline std::vector<double> sum_of(const std::vector<Array>& inputs) {
  std::vector<double> sum(inputs.front().values().size());
  for (const Array& input : inputs) {
    const std::vector<double> values = input.values();
    std::transform(values.begin(), values.end(), sum.begin(), sum.begin(), std::plus<>());
  }
  return sum;
}
inline std::vector<double> sum_of_magnitudes(const std::vector<Array>& inputs) {
  std::vector<double> sum(inputs.front().values().size());
  for (const Array& input : inputs) {
    const std::vector<double> values = input.values();
    std::transform(values.begin(), values.end(), sum.begin(), sum.begin(),
                   [](double value, double total) { return total + std::fabs(value); });
  }
  return sum;
}

}  // namespace isthmus::test
