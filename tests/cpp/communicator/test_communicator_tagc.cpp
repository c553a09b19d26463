#include <gtest/gtest.h>

#include <algorithm>
#include <functional>
#include <string>
#include <vector>

#include "codec/tagc/flat.h"
#include "isthmus/communicator.h"
#include "tests/cpp/support/world.h"

namespace isthmus {
namespace {

using test::Array;
using test::lossy_options;
using test::random_inputs;
using test::random_values;
using test::sum_of;
using test::sum_of_magnitudes;
using test::unit_roundoff;
using test::World;

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
    add(world.reduce_scatter(inputs, 1, nullptr), sent);
  }
  const std::vector<Array> zeros(static_cast<size_t>(map.world_size()), Array(chunk * map.world_size(), dtype));
  int drain_steps = 0;
  for (bool drained = false; !drained && drain_steps < 200; ++drain_steps) {
    const std::vector<double> late = world.reduce_scatter(zeros, 1, nullptr);
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
}

// With so many rows for so few keys that no two blocks of these data share all three rows: merged supports peel.
TEST(CommunicatorTagc, FlatAlsoSendsKeptBackElementsLater) {
  for (const int64_t index_bits : {1, 4}) {
    Options options = lossy_options();
    options.tiers = "flat";
    options.index_bits = index_bits;
    options.sparsity = 0.98;
    options.ratio = 1;
    expect_conservation(NodeMap::parse("2x1", 2), options, DataType::kFloat32, 8000);
  }
}

TEST(CommunicatorTagc, UnitsDoNotMixTheirResiduals) {
  Options options = lossy_options();
  options.sparsity = 0.5;
  World world(NodeMap::parse("2x1", 2), options);
  std::vector<double> ramp;
  for (int i = 0; i < 2 * 512; ++i) {
    ramp.push_back(1 + i % 512);
  }
  const std::vector<Array> gradients(2, Array(ramp, DataType::kFloat32));
  const std::vector<Array> zeros(2, Array(2 * 512, DataType::kFloat32));
  world.reduce_scatter(gradients, 1, nullptr, "a");
  for (const double value : world.reduce_scatter(zeros, 1, nullptr, "b")) {
    ASSERT_EQ(value, 0) << "unit b got what unit a kept back";
  }
  const std::vector<double> late = world.reduce_scatter(zeros, 1, nullptr, "a");
  EXPECT_TRUE(std::any_of(late.begin(), late.end(), [](double value) { return value != 0; }));
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
  EXPECT_EQ(world.reduce_scatter(inputs, 1, nullptr), sum_of(inputs));
}

TEST(CommunicatorTagc, PayloadIsThePacketSize) {
  constexpr int64_t kChunk = 4097;
  const Options options = lossy_options();
  const NodeMap map = NodeMap::parse("4x2", 8);
  World world(map, options);
  world.reduce_scatter(random_inputs(8, kChunk, DataType::kBFloat16), 1, nullptr);
  const auto codec = make_codec("tagc", options, DataType::kBFloat16, 2);
  for (const auto& communicator : world.ranks) {
    const CollectiveStats stats = communicator->stats().collectives[0];
    EXPECT_EQ(stats.inter.inter_node_sent_bytes, 3 * codec->packet_bytes(kChunk));
    EXPECT_EQ(stats.intra.sent_bytes, 4 * 1 * kChunk * 2);
  }
}

TEST(CommunicatorTagc, FlatPayloadIsIndexAndSketchAroundTheRing) {
  constexpr int64_t kChunk = 4097;
  Options options = lossy_options();
  options.tiers = "flat";
  const NodeMap map = NodeMap::parse("2x2", 4);
  World world(map, options);
  world.reduce_scatter(random_inputs(4, kChunk, DataType::kBFloat16), 1, nullptr);
  const TagcFlat codec(options, 4);
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

// The table "Example" of docs/algorithms.md.
TEST(CommunicatorTagc, TheExampleInTheDocs) {
  struct Row {
    const char* tiers;
    const char* codec;
    int64_t within_node;
    int64_t between_nodes;  // of a rank that sends to the other node
  };
  for (const Row& row : {Row{"two", "none", 2048, 1072}, Row{"two", "tagc", 2048, 960}, Row{"flat", "tagc", 0, 2496},
                         Row{"flat", "none", 0, 3072}}) {
    Options options = lossy_options();
    options.tiers = row.tiers;
    options.codec = row.codec;
    World world(NodeMap::parse("2x2", 4), options);
    world.reduce_scatter(random_inputs(4, 256, DataType::kFloat32), 1, nullptr);
    const CollectiveStats stats = world.ranks[1]->stats().collectives[0];
    EXPECT_EQ(stats.intra.sent_bytes, row.within_node) << row.tiers << ", " << row.codec;
    EXPECT_EQ(stats.inter.inter_node_sent_bytes + stats.flat.inter_node_sent_bytes, row.between_nodes)
        << row.tiers << ", " << row.codec;
  }
  for (const Row& row : {Row{"two", "none", 4192, 2144}, Row{"two", "tagc", 3968, 1920}}) {
    Options options = lossy_options();
    options.codec = row.codec;
    World world(NodeMap::parse("2x2", 4), options);
    world.all_reduce(random_inputs(4, 256, DataType::kFloat32), 1, nullptr);
    const CollectiveStats stats = world.ranks[1]->stats().collectives[static_cast<size_t>(Collective::kAllReduce)];
    EXPECT_EQ(stats.intra.sent_bytes, row.within_node) << row.codec;
    EXPECT_EQ(stats.inter.inter_node_sent_bytes, row.between_nodes) << row.codec;
  }
}

}  // namespace
}  // namespace isthmus
