#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <functional>
#include <limits>
#include <string>
#include <vector>

#include "isthmus/communicator.h"
#include "kernels/tagc/flat.h"
#include "tests/cpp/support/world.h"

namespace isthmus::test {
namespace {

// Gradients for a few steps, then zeros until the residuals have drained: what came out is what went in.
void expect_conservation(const NodeMap& map, const Options& options, DataType dtype, int64_t chunk) {
  constexpr int kGradientSteps = 4;
  SCOPED_TRACE(map.to_string() + ", chunks of " + std::to_string(chunk) + " " + to_string(dtype));
  World world(map, options);
  std::vector<double> total(static_cast<size_t>(chunk * map.world_size()));
  std::vector<double> sent = total;
  std::vector<double> magnitudes = total;
  const auto add = [](const std::vector<double>& values, std::vector<double>& sum) {
    std::transform(values.begin(), values.end(), sum.begin(), sum.begin(), std::plus<>());
  };
  for (int step = 0; step < kGradientSteps; ++step) {
    const std::vector<Array> inputs = random_inputs(map.world_size(), chunk, dtype, 100 + step);
    add(sum_of(inputs), total);
    add(sum_of_magnitudes(inputs), magnitudes);
    add(world.reduce_scatter(inputs, 1, {}), sent);
  }
  const std::vector<Array> zeros(static_cast<size_t>(map.world_size()), Array(chunk * map.world_size(), dtype));
  int drain_steps = 0;
  for (bool drained = false; !drained && drain_steps < 200; ++drain_steps) {
    const std::vector<double> late = world.reduce_scatter(zeros, 1, {});
    add(late, sent);
    drained = std::all_of(late.begin(), late.end(), [](double value) { return value == 0; });
  }
  EXPECT_TRUE(drain_steps > 1 || chunk == 1) << "nothing was kept back: not a lossy codec";
  EXPECT_LT(drain_steps, 200) << "the residuals never drained";
  EXPECT_EQ(world.ranks[0]->stats().codec.estimated_elements, 0);
  // Each step rounds its output to the type of the gradient, and adds in float32.
  for (size_t i = 0; i < total.size(); ++i) {
    const double bound = magnitudes[i] * (2 * unit_roundoff(dtype) + 200 * unit_roundoff(DataType::kFloat32));
    ASSERT_NEAR(sent[i], total[i], bound) << "element " << i;
  }
  EXPECT_GT(world.ranks[0]->stats().codec.kept_elements, 0);
}

TEST(CommunicatorTagc, KeptBackElementsAreSentLater) {
  for (const char* nodes : {"2x2", "4x2", "3x3", "4x1"}) {
    const int size = nodes == std::string("4x2") ? 8 : nodes == std::string("3x3") ? 9 : 4;
    for (const int64_t chunk : {1, 777, 5000}) {
      Options options = lossy_options();
      options.sparsity = 0.9;
      options.ratio = 4;
      expect_conservation(NodeMap::parse(nodes, size), options, DataType::kFloat32, chunk);
    }
  }
  expect_conservation(NodeMap({0, 1, 1, 0}), lossy_options(), DataType::kBFloat16, 3000);
  expect_conservation(NodeMap({0, 1, 1, 0}), lossy_options(), DataType::kFloat16, 3000);
  // With so many rows for so few keys that no two blocks of these data share all three rows: merged supports peel.
  Options options = flat_options();
  options.sparsity = 0.98;
  options.ratio = 1;
  expect_conservation(NodeMap::parse("2x1", 2), options, DataType::kFloat32, 8000);
}

TEST(CommunicatorTagc, TheOwnPieceIsExact) {
  Options options = lossy_options();
  World world(NodeMap::parse("2x1", 2), options);
  // Only the owner has a gradient for its chunk: nothing of it may be lost or late.
  constexpr int64_t kChunk = 3000;
  const std::vector<double> values = random_values(kChunk, 7);
  std::vector<double> first(2 * kChunk);
  std::vector<double> second(2 * kChunk);
  std::copy(values.begin(), values.end(), first.begin());
  std::copy(values.begin(), values.end(), second.begin() + kChunk);
  const std::vector<Array> inputs = {Array(first, DataType::kFloat32), Array(second, DataType::kFloat32)};
  EXPECT_EQ(world.reduce_scatter(inputs, 1, {}), sum_of(inputs));
}

TEST(CommunicatorTagc, FlatPayloadIsIndexAndSketchAroundTheRing) {
  constexpr int64_t kChunk = 4097;
  Options options = flat_options();
  const NodeMap map = NodeMap::parse("2x2", 4);
  World world(map, options);
  world.reduce_scatter(random_inputs(4, kChunk, DataType::kBFloat16), 1, {});
  const TagcFlatOnHost codec(options);
  // Multiples of 8: the ring's parts are equal.
  const int64_t index = 2 * 3 * codec.index_bytes(kChunk);
  const int64_t sketch = 3 * codec.sketch_elements(kChunk) * 4;
  for (int rank = 0; rank < 4; ++rank) {
    const CollectiveStats stats = world.ranks[rank]->stats().collectives[0];
    EXPECT_EQ(stats.flat.sent_bytes, index + sketch);
    EXPECT_EQ(stats.flat.inter_node_sent_bytes, rank % 2 == 1 ? index + sketch : 0);
    EXPECT_EQ(stats.inter.sent_bytes + stats.intra.sent_bytes, 0);
    EXPECT_EQ(world.ranks[rank]->stats().residual_bytes, 4 * kChunk * 4);
  }
}

// --- the two residuals of an all-reduce: of the pieces, and of the owners' results

// What all units of the world still owe: scale * residual + result residual, for every element, zeros of the padding
// included.
std::vector<double> outstanding(const World& world) {
  const NodeMap& map = world.map;
  std::vector<double> sum;
  for (int rank = 0; rank < world.size(); ++rank) {
    for (const UnitState& state : world.ranks[rank]->units().states()) {
      const auto chunk = static_cast<int64_t>(state.result_residual.size());
      sum.resize(static_cast<size_t>(chunk * world.size()));
      for (int64_t i = 0; i < chunk; ++i) {
        sum[rank * chunk + i] += state.result_residual[i];
      }
      for (int64_t i = 0; i < static_cast<int64_t>(state.residual.size()); ++i) {
        const int piece = static_cast<int>(i / chunk);
        const int owner_node = piece < map.node(rank) ? piece : piece + 1;
        const int owner = map.rank(owner_node, map.local_index(rank));
        sum[owner * chunk + i % chunk] += state.scale * state.residual[i];
      }
    }
  }
  return sum;
}

// Delivered so far + still owed = the sum over steps of scale * sum of all inputs, where the scale changes, too: a
// residual of pieces follows it, one of results is scaled already.
TEST(CommunicatorTagc, AllReducesLoseNothingBetweenTheirResiduals) {
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
      const std::vector<double> result = world.all_reduce(inputs, scale, {})[0].values();
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

// Both places in which a block can be flagged: the piece of the other node, and the owner's result.
TEST(CommunicatorTagc, NonFiniteBlocksOfAllReducesLeaveTheirResiduals) {
  constexpr int64_t kBlock = 64;  // of so short a chunk
  constexpr int64_t kChunk = 20 * kBlock;
  for (const double special : {std::nan(""), std::numeric_limits<double>::infinity()}) {
    Options options = lossy_options();
    options.sparsity = 0.9;
    World world(NodeMap::parse("2x1", 2), options);
    world.all_reduce(random_arrays(2, 2 * kChunk, DataType::kFloat32, 1), 1, {});
    const auto block_of = [&](int rank, bool of_result) {
      const UnitState state = world.ranks[rank]->units().states().at(0);
      const float* values = (of_result ? state.result_residual : state.residual).data() + 3 * kBlock;
      return std::vector<float>(values, values + kBlock);
    };
    const std::vector<float> piece_before = block_of(1, false);
    const std::vector<float> result_before = block_of(0, true);
    const std::vector<float> other_before = block_of(1, true);

    std::vector<Array> inputs = random_arrays(2, 2 * kChunk, DataType::kFloat32, 2);
    const int64_t place = 3 * kBlock + 5;  // rank 1's piece for rank 0
    inputs[1].buffer().as<float>()[place] = static_cast<float>(special);
    const std::vector<Array> results = world.all_reduce(inputs, 1, {});
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
         world.all_reduce(random_arrays(2, 2 * kChunk, DataType::kFloat32, 3), 1, {})[1].values()) {
      ASSERT_TRUE(std::isfinite(value)) << "training goes on";
    }
  }
}

}  // namespace
}  // namespace isthmus::test
