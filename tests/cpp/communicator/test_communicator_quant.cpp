#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <utility>
#include <vector>

#include "isthmus/communicator.h"
#include "tests/cpp/support/world.h"

namespace isthmus::test {
namespace {

Options quant_options(int64_t bits, ErrorFeedback error_feedback) {
  Options options = lossy_options();
  options.codec = "quant";
  options.bits = bits;
  options.error_feedback = error_feedback;
  return options;
}

constexpr int64_t kChunk = 5000;  // whole groups, and a tail

// A group with NaN or Inf is NaN on every rank, and in the tail an element alone; the others stay finite.
TEST(CommunicatorQuant, NonFiniteGroupsReachEveryRank) {
  constexpr float kInfinity = std::numeric_limits<float>::infinity();
  World world(NodeMap::parse("2x2", 4), quant_options(4, ErrorFeedback::kOn));
  std::vector<Array> inputs = random_arrays(4, 4 * 1000, DataType::kFloat32);
  inputs[0].buffer().as<float>()[5] = inputs[3].buffer().as<float>()[2999] = kInfinity;  // a group; in a tail
  for (int step = 0; step < 2; ++step) {
    const std::vector<Array> results = world.all_reduce(inputs, 1, {});
    expect_equal_bits(results);
    const std::vector<double> values = results[0].values();
    for (size_t i = 0; i < values.size(); ++i) {
      ASSERT_EQ(std::isfinite(values[i]), step == 1 || (i >= 128 && i != 2999)) << "element " << i;
    }
    inputs = random_arrays(4, 4 * 1000, DataType::kFloat32, 2);
  }
}

// What rotation leaves is drawn for each node by itself, so that of the errors of n nodes the n-th part stays, and not
// all. The own node's piece has none.
TEST(CommunicatorQuant, ErrorsOfNodesCancel) {
  constexpr int kNodes = 8;
  World world(NodeMap::parse("8x1", kNodes), quant_options(1, ErrorFeedback::kOff));
  const std::vector<Array> equal(kNodes, random_inputs(1, kNodes * kChunk, DataType::kFloat32)[0]);
  const double error_of_one = .363 / (1 - .363);  // docs/quant.md
  const double expected = error_of_one / kNodes * (kNodes - 1) / kNodes;
  const std::vector<double> sum = sum_of(equal);
  std::vector<double> mean(sum.size());
  constexpr int kSteps = 20;
  double error = 0;
  for (int step = 0; step < kSteps; ++step) {
    const std::vector<double> result = world.reduce_scatter(equal, 1, {});
    error += relative_error(sum, result) / kSteps;
    for (size_t i = 0; i < mean.size(); ++i) {
      mean[i] += result[i] / kSteps;
    }
  }
  EXPECT_NEAR(error, expected, .02 * expected);
  EXPECT_NEAR(relative_error(sum, mean), expected / kSteps, .04 * expected / kSteps) << "a bias adds its square";
}

// A parameter that is copied for tensor parallelism is reduced in one group for each copy: other ranks of the job, at
// the same places on their nodes.
TEST(CommunicatorQuant, CopiesInOtherGroupsGetTheSameBits) {
  const NodeMap job = NodeMap::parse("2x4", 8);
  const auto group_of = [&](const std::vector<int>& ranks) {
    std::vector<int> node_of_rank;
    for (const int rank : ranks) {
      node_of_rank.push_back(job.node(rank));
    }
    return NodeMap(node_of_rank);
  };
  const Options options = quant_options(2, ErrorFeedback::kOn);
  for (const auto& copies :
       {std::pair(std::vector{0, 2, 4, 6}, std::vector{1, 3, 5, 7}), std::pair(std::vector{0, 4}, std::vector{3, 7})}) {
    World first(group_of(copies.first), options);
    World second(group_of(copies.second), options);
    for (int step = 0; step < 3; ++step) {
      const std::vector<Array> inputs = random_inputs(first.size(), kChunk, DataType::kFloat32, step + 1);
      EXPECT_EQ(first.reduce_scatter(inputs, 1, {}), second.reduce_scatter(inputs, 1, {}));
      EXPECT_EQ(first.all_reduce(inputs, 1, {})[0].bytes(), second.all_reduce(inputs, 1, {})[1].bytes());
    }
  }
}

}  // namespace
}  // namespace isthmus::test
