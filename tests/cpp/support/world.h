// A communicator for every rank, over in-process tiers, and gradients for them.
#pragma once

#include <algorithm>
#include <cctype>
#include <chrono>
#include <cmath>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "isthmus/codec_type.h"
#include "isthmus/communicator.h"
#include "tests/cpp/support/in_process.h"
#include "tests/cpp/support/keyed_communicator.h"
#include "tests/cpp/support/ranks.h"
#include "tests/cpp/support/typed_data.h"

namespace isthmus::test {

using std::chrono::milliseconds;

inline constexpr milliseconds kTimeout(120000);  // only a hang reaches it
inline constexpr milliseconds kShortTimeout(300);

inline Options exact_options() {
  Options options;
  options.codec = "none";
  return options;
}

// `codec` with the settings that are its defaults.
inline Options options_of_codec(const std::string& codec) {
  Options options;
  options.codec = codec;
  options.min_elements = 0;
  return options;
}
inline Options lossy_options() { return options_of_codec("tagc"); }
inline Options flat_options() {
  Options options = lossy_options();
  options.tiers = TierMode::kFlat;
  return options;
}

// What loses something on its way, and may keep state: the default codec as it is and with a residual, and the others.
inline std::vector<Options> every_lossy_options() {
  std::vector<Options> all;
  for (const std::string& codec : codec_names()) {
    if (codec != "none") {
      all.push_back(options_of_codec(codec));
    }
    if (codec == Options().codec) {
      all.push_back(options_of_codec(codec));
      all.back().error_feedback = ErrorFeedback::kOn;
    }
  }
  return all;
}
inline std::vector<Options> every_lossy_options_of_both_tiers() {
  std::vector<Options> all = every_lossy_options();
  all.push_back(flat_options());
  return all;
}
inline std::vector<Options> every_options() {
  std::vector<Options> all = every_lossy_options();
  all.push_back(exact_options());
  return all;
}
inline std::string name_of_codec(const ::testing::TestParamInfo<Options>& parameter) {
  return parameter.param.codec + (parameter.param.error_feedback == ErrorFeedback::kOn ? "_with_feedback" : "") +
         (parameter.param.tiers == TierMode::kFlat ? "_flat" : "");
}

using Wrap = std::function<Tiers(int rank, Tiers tiers)>;

// A communicator for every rank of a map, over in-process tiers.
class World {
 public:
  World(const NodeMap& node_map, const Options& options, milliseconds timeout = kTimeout, const Wrap& wrap = {})
      : map(node_map), hub(map, timeout) {
    for (int rank = 0; rank < map.world_size(); ++rank) {
      const Tiers tiers = hub.tiers(map, rank);
      ranks.push_back(std::make_unique<KeyedCommunicator>(map, rank, wrap ? wrap(rank, tiers) : tiers, options));
    }
  }

  int size() const { return map.world_size(); }

  // Every rank's shard, end to end: where inputs[r] is rank r's gradient.
  std::vector<double> reduce_scatter(const std::vector<Array>& inputs, const KeyedReduction& reduction) {
    Array whole(inputs.front().num_elements(), inputs.front().view().dtype);
    run_ranks_well(size(), [&](int rank) {
      const Buffer shard = whole.buffer().part(rank, whole.num_elements() / size());
      ranks[rank]->reduce_scatter(inputs[rank].view(), shard, reduction);
    });
    return whole.values();
  }
  std::vector<double> reduce_scatter(const std::vector<Array>& inputs, double scale, std::optional<Reason> why_exact,
                                     const std::string& unit = "unit") {
    const ConstBuffer first = inputs.front().view();
    return reduce_scatter(inputs, {{unit, first.num_elements, first.dtype}, scale, why_exact});
  }

  // What every rank got.
  std::vector<Array> all_reduce(std::vector<Array> inputs, const KeyedReduction& reduction) {
    run_ranks_well(size(), [&](int rank) { ranks[rank]->all_reduce(inputs[rank].buffer(), reduction); });
    return inputs;
  }
  std::vector<Array> all_reduce(const std::vector<Array>& inputs, double scale, std::optional<Reason> why_exact,
                                const std::string& unit = "unit") {
    const ConstBuffer first = inputs.front().view();
    return all_reduce(inputs, {{unit, first.num_elements, first.dtype, Collective::kAllReduce}, scale, why_exact});
  }

  // On every rank, one after another.
  template <typename Action>
  void on_units(const Action& action) {
    for (const auto& communicator : ranks) {
      action(communicator->units());
    }
  }

  NodeMap map;
  InProcessHub hub;
  std::vector<std::unique_ptr<KeyedCommunicator>> ranks;
};

// One array for each rank.
inline std::vector<Array> random_arrays(int world_size, int64_t num_elements, DataType dtype, uint64_t seed = 1) {
  std::vector<Array> arrays;
  for (int rank = 0; rank < world_size; ++rank) {
    arrays.emplace_back(random_values(num_elements, seed * 1000 + rank), dtype);
  }
  return arrays;
}
inline std::vector<Array> random_inputs(int world_size, int64_t chunk_elements, DataType dtype, uint64_t seed = 1) {
  return random_arrays(world_size, world_size * chunk_elements, dtype, seed);
}

// The bound of docs/algorithms.md, "What codec none guarantees".
inline double exact_path_bound(const NodeMap& map, DataType dtype, double scale, double sum, double magnitudes) {
  const double u_sum = unit_roundoff(accumulate_dtype(dtype));
  const double u_wire = map.num_nodes() > 1 && dtype != accumulate_dtype(dtype) ? unit_roundoff(dtype) : 0;
  const int additions = map.ranks_per_node() + map.num_nodes() - 2;
  const double underflow = dtype == DataType::kFloat16 ? (map.world_size() + 1) * 0x1p-24 : 0;
  const double before_scaling = (u_wire + additions * u_sum * 1.1) * magnitudes + underflow;
  return std::fabs(scale) * (before_scaling + (unit_roundoff(dtype) + 2 * u_sum) * 1.1 * std::fabs(sum)) + underflow;
}

// Compares the results of all ranks.
inline void expect_equal_bits(const std::vector<Array>& arrays) {
  for (size_t rank = 1; rank < arrays.size(); ++rank) {
    ASSERT_TRUE(arrays[rank].bytes() == arrays[0].bytes()) << "rank " << rank << " has other bits than rank 0";
  }
}

// For tests that run once a map: letters and digits.
inline std::string name_of_map(const ::testing::TestParamInfo<NodeMap>& parameter) {
  std::string name = parameter.param.to_string();
  std::replace_if(
      name.begin(), name.end(), [](char letter) { return std::isalnum(letter) == 0; }, '_');
  return name;
}

// In float64, of the values as they are in their type, or of what of_value() makes of each.
template <typename OfValue = std::identity>
std::vector<double> sum_of(const std::vector<Array>& inputs, OfValue of_value = {}) {
  std::vector<double> sum(inputs.front().values().size());
  for (const Array& input : inputs) {
    std::ranges::transform(input.values(), sum, sum.begin(), std::plus<>(), of_value);
  }
  return sum;
}
inline std::vector<double> sum_of_magnitudes(const std::vector<Array>& inputs) {
  return sum_of(inputs, [](double value) { return std::fabs(value); });
}

}  // namespace isthmus::test
