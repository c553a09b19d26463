// The communicator with codec quant against a model of whole collectives, bit for bit.
#include <gtest/gtest.h>

#include <bit>
#include <cstdint>
#include <limits>
#include <string>
#include <vector>

#include "tests/cpp/codec/quant/quant_collectives.h"
#include "tests/cpp/support/world.h"

namespace isthmus {
namespace {

using reference::QuantCollective;
using test::Array;
using test::kFloatingTypes;
using test::random_arrays;
using test::World;

constexpr double kScale = 1.0 / 3;

struct Placement {
  const char* name;
  std::vector<int> node_of_rank;
  std::vector<std::vector<int>> nodes;  // said once more, by hand
};
const std::vector<Placement> kPlacements = {
    {"4 x 1", {0, 1, 2, 3}, {{0}, {1}, {2}, {3}}},
    {"2 x 2", {0, 0, 1, 1}, {{0, 1}, {2, 3}}},
    {"cyclic", {0, 1, 0, 1}, {{0, 2}, {1, 3}}},
    {"arbitrary", {0, 1, 1, 2, 0, 2}, {{0, 4}, {1, 2}, {3, 5}}},
};

Options with_bits(int64_t bits) {
  Options options;
  options.bits = bits;
  options.min_elements = 0;
  return options;
}

// Which NaN it is says nothing.
std::vector<uint64_t> bits_of(const std::vector<Array>& arrays) {
  std::vector<uint64_t> bits;
  for (const Array& array : arrays) {
    for (const double value : array.values()) {
      bits.push_back(std::bit_cast<uint64_t>(std::isnan(value) ? std::numeric_limits<double>::quiet_NaN() : value));
    }
  }
  return bits;
}

using Gradients = std::vector<std::vector<Array>>;  // by step and rank

void expect_as_modelled(const Placement& placement, const Options& options, Collective collective,
                        const Gradients& gradients) {
  const ConstBuffer first = gradients[0][0].view();
  SCOPED_TRACE(std::string(placement.name) + ", " + to_string(collective) + " of " +
               std::to_string(first.num_elements) + " x " + to_string(first.dtype) + ", " + options.to_string());
  World world(NodeMap(placement.node_of_rank), options);
  QuantCollective model(placement.nodes, options, {"unit", first.num_elements, first.dtype, collective});
  for (const std::vector<Array>& of_ranks : gradients) {
    if (collective == Collective::kReduceScatter) {
      const std::vector<double> shards = world.reduce_scatter(of_ranks, kScale, nullptr);
      ASSERT_EQ(bits_of({Array(shards, DataType::kFloat64)}), bits_of(model.reduce_scatter(of_ranks, kScale)));
    } else {
      const std::vector<uint64_t> expected = bits_of({model.all_reduce(of_ranks, kScale)});
      for (const Array& result : world.all_reduce(of_ranks, kScale, nullptr)) {
        ASSERT_EQ(bits_of({result}), expected);
      }
    }
  }
  const Stats stats = world.ranks[0]->stats();
  EXPECT_EQ(stats.compressed_calls, static_cast<int64_t>(gradients.size()));
}

Gradients random_gradients(const Placement& placement, int num_steps, int64_t num_elements, DataType dtype) {
  Gradients gradients;
  for (int step = 0; step < num_steps; ++step) {
    gradients.push_back(random_arrays(static_cast<int>(placement.node_of_rank.size()), num_elements, dtype, step + 1));
  }
  return gradients;
}

int64_t whole(const Placement& placement, int64_t chunk_elements) {
  return static_cast<int64_t>(placement.node_of_rank.size()) * chunk_elements;
}

TEST(QuantCollectives, DefaultOptionsAreAsModelled) {
  const Options defaults;
  ASSERT_EQ(defaults.codec, "quant") << "this is a model of the default codec";
  for (const Placement& placement : kPlacements) {
    for (const DataType dtype : {DataType::kFloat32, DataType::kBFloat16, DataType::kFloat16}) {
      const int64_t at_least = (defaults.min_elements + 11) / 12 * 12;  // divisible by all numbers of ranks
      expect_as_modelled(placement, defaults, Collective::kReduceScatter,
                         random_gradients(placement, 2, at_least, dtype));
      expect_as_modelled(placement, defaults, Collective::kAllReduce,
                         random_gradients(placement, 2, at_least + 5, dtype));
    }
  }
}

TEST(QuantCollectives, SegmentsThatAreChosenAreAsModelled) {
  const Placement two = {"2 x 1", {0, 1}, {{0}, {1}}};
  const int64_t chunk = 2 * 262144 + 4097;  // two segments, the first of a whole number of 4096
  expect_as_modelled(two, Options(), Collective::kReduceScatter,
                     random_gradients(two, 1, 2 * chunk, DataType::kFloat32));
  expect_as_modelled(two, Options(), Collective::kAllReduce,
                     random_gradients(two, 1, 2 * chunk - 1, DataType::kBFloat16));
}

TEST(QuantCollectives, OtherBitsSegmentsAndSizesAreAsModelled) {
  for (const Placement& placement : kPlacements) {
    for (const int64_t bits : {1, 2, 3, 8}) {
      Options options = with_bits(bits);
      options.segments = 3;
      options.error_feedback = bits == 2 ? "on" : "off";
      for (const int64_t chunk : {int64_t{1}, int64_t{127}, int64_t{4096}, int64_t{2 * 4096 + 700}}) {
        expect_as_modelled(placement, options, Collective::kReduceScatter,
                           random_gradients(placement, 3, whole(placement, chunk), DataType::kFloat32));
        expect_as_modelled(placement, options, Collective::kAllReduce,
                           random_gradients(placement, 3, whole(placement, chunk) - 1, DataType::kBFloat16));
      }
    }
  }
}

TEST(QuantCollectives, NanAndInfAreAsModelled) {
  constexpr double kNan = std::numeric_limits<double>::quiet_NaN();
  constexpr double kInfinity = std::numeric_limits<double>::infinity();
  Options options = with_bits(4);
  options.error_feedback = "on";
  for (const Placement& placement : kPlacements) {
    Gradients gradients = random_gradients(placement, 2, whole(placement, 1000), DataType::kFloat32);
    for (const auto& [rank, element, value] :
         {std::tuple(0, 5, kNan), std::tuple(1, 1700, kInfinity), std::tuple(3, 2999, -kInfinity)}) {
      std::vector<double> values = gradients[0][rank].values();
      values[element] = value;
      gradients[0][rank] = Array(values, DataType::kFloat32);
    }
    expect_as_modelled(placement, options, Collective::kReduceScatter, gradients);
    expect_as_modelled(placement, options, Collective::kAllReduce, gradients);
  }
}

// The codec is for float32 sums: float64 goes through codec none, in the same order of sums.
TEST(QuantCollectives, Float64IsTheExactSumInTheSameOrder) {
  for (const Placement& placement : kPlacements) {
    World world(NodeMap(placement.node_of_rank), Options());
    const int64_t num_elements = whole(placement, 20000);
    const std::vector<Array> gradients = random_gradients(placement, 1, num_elements, DataType::kFloat64)[0];
    std::vector<std::vector<double>> values;
    for (const Array& gradient : gradients) {
      values.push_back(gradient.values());
    }
    std::vector<double> expected;
    for (int64_t i = 0; i < num_elements; ++i) {
      const int owner = static_cast<int>(i / 20000);
      std::vector<double> pieces;
      double own_piece = 0;
      for (const std::vector<int>& node : placement.nodes) {
        double piece = values[node[0]][i];
        for (size_t local = 1; local < node.size(); ++local) {
          piece += values[node[local]][i];
        }
        const bool owns = std::find(node.begin(), node.end(), owner) != node.end();
        (owns ? own_piece : pieces.emplace_back()) = piece;
      }
      for (const double piece : pieces) {
        own_piece += piece;
      }
      expected.push_back(own_piece * kScale);
    }
    EXPECT_EQ(world.reduce_scatter(gradients, kScale, nullptr), expected) << placement.name;
    for (const Array& result : world.all_reduce(gradients, kScale, nullptr)) {
      EXPECT_EQ(result.values(), expected) << placement.name;
    }
    EXPECT_EQ(world.ranks[0]->stats().exact_calls.at("float64"), 2);
  }
}

}  // namespace
}  // namespace isthmus
