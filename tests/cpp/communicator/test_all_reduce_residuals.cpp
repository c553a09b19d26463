// The two residuals of an all-reduce with tagc: of the pieces, and of the owners' results.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <string>
#include <vector>

#include "isthmus/communicator.h"
#include "tests/cpp/support/equal_bits.h"
#include "tests/cpp/support/world.h"

namespace isthmus {
namespace {

using test::Array;
using test::expect_equal_bits;
using test::lossy_options;
using test::random_arrays;
using test::sum_of;
using test::sum_of_magnitudes;
using test::unit_roundoff;
using test::World;

// What all units of the world still owe: scale * residual + result residual, for every element, zeros of the padding
// included.
std::vector<double> outstanding(const World& world) {
  const NodeMap& map = world.map;
  std::vector<double> sum;
  for (int rank = 0; rank < world.size(); ++rank) {
    for (const UnitState& state : world.ranks[rank]->units().states()) {
      const int64_t chunk = state.result_residual.num_elements;
      sum.resize(static_cast<size_t>(chunk * world.size()));
      for (int64_t i = 0; i < chunk; ++i) {
        sum[rank * chunk + i] += state.result_residual.as<float>()[i];
      }
      for (int64_t i = 0; i < state.residual.num_elements; ++i) {
        const int piece = static_cast<int>(i / chunk);
        const int owner_node = piece < map.node(rank) ? piece : piece + 1;
        const int owner = map.rank(owner_node, map.local_index(rank));
        sum[owner * chunk + i % chunk] += state.scale * state.residual.as<float>()[i];
      }
    }
  }
  return sum;
}

// Delivered so far + still owed = the sum over steps of scale * sum of all inputs, where the scale changes, too: a
// residual of pieces follows it, one of results is scaled already.
TEST(AllReduceTagc, NothingIsLostBetweenTheTwoResiduals) {
  struct Case {
    NodeMap map;
    DataType dtype;
    int64_t elements;
  };
  for (const Case& test :
       {Case{NodeMap::parse("2x2", 4), DataType::kFloat32, 20011},
        Case{NodeMap::parse("4x1", 4), DataType::kFloat32, 8192},
        Case{NodeMap::parse("3x2", 6), DataType::kBFloat16, 9001}, Case{NodeMap({0, 1, 1, 0}), DataType::kFloat16, 7},
        Case{NodeMap({0, 1, 1, 0}), DataType::kFloat32, 12000}}) {
    SCOPED_TRACE(test.map.to_string() + ", " + std::to_string(test.elements) + " " + to_string(test.dtype));
    Options options = lossy_options();
    options.sparsity = 0.9;
    options.ratio = 4;
    World world(test.map, options);
    constexpr double kScales[] = {0.3, 0.3, 0.075, 0.6};
    std::vector<double> delivered(static_cast<size_t>(test.elements));
    std::vector<double> expected = delivered;
    std::vector<double> magnitudes = delivered;
    for (int step = 0; step < 4; ++step) {
      const double scale = kScales[step];
      const std::vector<Array> inputs = random_arrays(world.size(), test.elements, test.dtype, 100 + step);
      const std::vector<double> result = world.all_reduce(inputs, scale, nullptr)[0].values();
      const std::vector<double> sum = sum_of(inputs);
      const std::vector<double> sizes = sum_of_magnitudes(inputs);
      const std::vector<double> owed = outstanding(world);
      int64_t zeros = 0;
      for (int64_t i = 0; i < test.elements; ++i) {
        delivered[i] += result[i];
        expected[i] += scale * sum[i];
        magnitudes[i] += scale * sizes[i];
        zeros += result[i] == 0 ? 1 : 0;
        const double bound = magnitudes[i] * (2 * unit_roundoff(test.dtype) + 100 * unit_roundoff(DataType::kFloat32));
        ASSERT_NEAR(delivered[i] + owed[i], expected[i], bound) << "step " << step << ", element " << i;
      }
      EXPECT_GT(zeros, test.elements / 3) << "nothing was kept back: not a lossy codec";
      EXPECT_TRUE(std::all_of(owed.begin() + test.elements, owed.end(), [](double value) { return value == 0; }))
          << "the padding owes something";
    }
  }
}

// Zeros until both residuals have drained: what came out is what went in.
TEST(AllReduceTagc, BothResidualsDrain) {
  Options options = lossy_options();
  options.sparsity = 0.9;
  options.ratio = 4;
  World world(NodeMap::parse("2x2", 4), options);
  world.all_reduce(random_arrays(4, 5001, DataType::kFloat32), 1, nullptr);
  const std::vector<Array> zeros(4, Array(5001, DataType::kFloat32));
  int steps = 0;
  const auto owes = [&] {
    const std::vector<double> owed = outstanding(world);
    return std::any_of(owed.begin(), owed.end(), [](double value) { return value != 0; });
  };
  EXPECT_TRUE(owes());
  for (; owes() && steps < 200; ++steps) {
    world.all_reduce(zeros, 1, nullptr);
  }
  EXPECT_LT(steps, 200);
}

// Both places in which a block can be flagged: the piece of the other node, and the owner's result.
TEST(AllReduceTagc, NonFiniteBlocksLeaveTheirResidualsAsTheyWere) {
  constexpr int64_t kBlock = 64;  // of so short a chunk
  constexpr int64_t kChunk = 20 * kBlock;
  for (const double special : {std::nan(""), std::numeric_limits<double>::infinity()}) {
    Options options = lossy_options();
    options.sparsity = 0.9;
    World world(NodeMap::parse("2x1", 2), options);
    world.all_reduce(random_arrays(2, 2 * kChunk, DataType::kFloat32, 1), 1, nullptr);
    const auto block_of = [&](int rank, bool of_result) {
      const UnitState state = world.ranks[rank]->units().states().at(0);
      const float* values = (of_result ? state.result_residual : state.residual).as<float>() + 3 * kBlock;
      return std::vector<float>(values, values + kBlock);
    };
    const std::vector<float> piece_before = block_of(1, false);
    const std::vector<float> result_before = block_of(0, true);
    const std::vector<float> other_before = block_of(1, true);

    std::vector<Array> inputs = random_arrays(2, 2 * kChunk, DataType::kFloat32, 2);
    const int64_t place = 3 * kBlock + 5;  // rank 1's piece for rank 0
    inputs[1].buffer().as<float>()[place] = static_cast<float>(special);
    const std::vector<Array> results = world.all_reduce(inputs, 1, nullptr);
    expect_equal_bits(results);
    const std::vector<double> values = results[0].values();
    for (int64_t i = 0; i < 2 * kChunk; ++i) {
      ASSERT_EQ(std::isfinite(values[i]), i != place) << "element " << i;
    }
    EXPECT_EQ(block_of(1, false), piece_before);
    EXPECT_EQ(block_of(0, true), result_before);
    EXPECT_NE(block_of(1, true), other_before) << "of another chunk";
    EXPECT_EQ(world.ranks[0]->stats().codec.non_finite_blocks, 1) << "in its result";
    EXPECT_EQ(world.ranks[1]->stats().codec.non_finite_blocks, 1) << "in its piece";

    for (const double value :
         world.all_reduce(random_arrays(2, 2 * kChunk, DataType::kFloat32, 3), 1, nullptr)[1].values()) {
      ASSERT_TRUE(std::isfinite(value)) << "training goes on";
    }
  }
}

}  // namespace
}  // namespace isthmus
