// Reductions with codec sparse over in-process tiers, against a model that adds up what the reference says arrives.
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <string>
#include <vector>

#include "codec/sparse/host.h"
#include "isthmus/communicator.h"
#include "tests/cpp/codec/sparse/sparse_reference.h"
#include "tests/cpp/support/world.h"

namespace isthmus {
namespace {

using test::Array;
using test::lossy_options;
using test::random_inputs;
using test::World;

Options sparse_options(const std::string& error_feedback, const std::string& value_type = "bf16") {
  Options options = lossy_options();
  options.codec = "sparse";
  options.sparsity = .9;
  options.value_type = value_type;
  options.error_feedback = error_feedback;
  return options;
}

// What docs/algorithms.md says, with all ranks' residuals in one place. Nodes of one or two ranks: sums of two do not
// depend on their order.
class Model {
 public:
  Model(const NodeMap& map, const Options& options, int64_t chunk)
      : nodes_(map.num_nodes()),
        local_(map.ranks_per_node()),
        chunk_(chunk),
        parameters_{options.sparsity, options.value_type, 0, 0, 0},
        residual_(options.error_feedback == "off" ? 0 : chunk),
        residuals_(static_cast<size_t>(nodes_ * nodes_ * local_), residual_),
        result_residuals_(static_cast<size_t>(nodes_ * local_), residual_) {}

  std::vector<double> reduce_scatter(const std::vector<Array>& inputs) {
    std::vector<double> whole;
    for (int rank = 0; rank < nodes_ * local_; ++rank) {
      const std::vector<float> shard = reduce(inputs, rank);
      whole.insert(whole.end(), shard.begin(), shard.end());
    }
    return whole;
  }

  std::vector<double> all_reduce(const std::vector<Array>& inputs) {
    std::vector<double> whole;
    for (int rank = 0; rank < nodes_ * local_; ++rank) {
      const std::vector<float> result = arrives(reduce(inputs, rank), result_residuals_[rank]);
      whole.insert(whole.end(), result.begin(), result.end());
    }
    return whole;
  }

 private:
  // What one rank owns of the sum: its node's piece, and what comes from the other nodes, in their order.
  std::vector<float> reduce(const std::vector<Array>& inputs, int rank) {
    std::vector<float> sum = piece(inputs, rank / local_, rank);
    for (int node = 0; node < nodes_; ++node) {
      if (node == rank / local_) {
        continue;
      }
      std::vector<float>& residual = residuals_[static_cast<size_t>(node * nodes_ * local_ + rank)];
      const std::vector<float> arrived = arrives(piece(inputs, node, rank), residual);
      std::transform(sum.begin(), sum.end(), arrived.begin(), sum.begin(), std::plus<>());
    }
    return sum;
  }

  // A node's sum of the chunk of `rank`.
  std::vector<float> piece(const std::vector<Array>& inputs, int node, int rank) const {
    std::vector<float> sum(static_cast<size_t>(chunk_));
    for (int local = 0; local < local_; ++local) {
      const std::vector<double> values = inputs[static_cast<size_t>(node * local_ + local)].values();
      for (int64_t i = 0; i < chunk_; ++i) {
        sum[i] += static_cast<float>(values[rank * chunk_ + i]);
      }
    }
    return sum;
  }

  std::vector<float> arrives(const std::vector<float>& values, std::vector<float>& residual) const {
    return reference::encode_sparse(parameters_, values, residual).arrives;
  }

  int nodes_;
  int local_;
  int64_t chunk_;
  reference::SparseParameters parameters_;
  std::vector<float> residual_;
  std::vector<std::vector<float>> residuals_;         // by sending node and owner
  std::vector<std::vector<float>> result_residuals_;  // by owner
};

class CommunicatorSparse : public testing::TestWithParam<NodeMap> {};

TEST_P(CommunicatorSparse, ReduceScatterEqualsTheModel) {
  for (const char* error_feedback : {"codec", "on", "off"}) {
    for (const char* value_type : {"fp32", "bf16", "int8"}) {
      for (const int64_t chunk : {1, 1025, 9000}) {
        SCOPED_TRACE(testing::Message() << error_feedback << ", " << value_type << ", chunks of " << chunk);
        Options options = sparse_options(error_feedback, value_type);
        options.segments = chunk > 4096 ? 3 : 0;
        World world(GetParam(), options);
        Model model(GetParam(), options, chunk);
        for (int step = 0; step < 3; ++step) {
          const std::vector<Array> inputs = random_inputs(world.size(), chunk, DataType::kFloat32, 10 + step);
          ASSERT_EQ(world.reduce_scatter(inputs, 1, nullptr), model.reduce_scatter(inputs)) << "step " << step;
        }
      }
    }
  }
}

TEST_P(CommunicatorSparse, AllReduceEqualsTheModel) {
  for (const char* error_feedback : {"on", "off"}) {
    for (const int64_t chunk : {1, 1025, 9000}) {
      SCOPED_TRACE(testing::Message() << error_feedback << ", chunks of " << chunk);
      const Options options = sparse_options(error_feedback);
      World world(GetParam(), options);
      Model model(GetParam(), options, chunk);
      for (int step = 0; step < 3; ++step) {
        const std::vector<Array> inputs = random_inputs(world.size(), chunk, DataType::kFloat32, 10 + step);
        const std::vector<double> expected = model.all_reduce(inputs);
        for (const Array& result : world.all_reduce(inputs, 1, nullptr)) {
          ASSERT_EQ(result.values(), expected) << "step " << step;
        }
      }
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Maps, CommunicatorSparse,
                         testing::Values(NodeMap::parse("2x1", 2), NodeMap::parse("2x2", 4), NodeMap::parse("3x1", 3)),
                         test::name_of_map);

TEST(CommunicatorSparseBytes, PayloadIsThePacketSize) {
  constexpr int64_t kChunk = 4097;
  const Options options = sparse_options("codec");
  World world(NodeMap::parse("2x2", 4), options);
  world.reduce_scatter(random_inputs(4, kChunk, DataType::kBFloat16), 1, nullptr);
  const SparseCodec codec(options);
  for (const auto& communicator : world.ranks) {
    const Stats stats = communicator->stats();
    EXPECT_EQ(stats.collectives[0].inter.inter_node_sent_bytes, codec.packet_bytes(kChunk));
    EXPECT_EQ(stats.residual_bytes, kChunk * 4);
    EXPECT_EQ(stats.codec.kept_elements, 4 * 102 + 1);
  }
}

TEST(CommunicatorSparseBytes, NoResidualWithoutFeedback) {
  World world(NodeMap::parse("2x1", 2), sparse_options("off"));
  world.reduce_scatter(random_inputs(2, 3000, DataType::kFloat32), 1, nullptr);
  EXPECT_EQ(world.ranks[0]->stats().residual_bytes, 0);
}

// Only the owner has a gradient for its chunk: nothing of it may be lost or late.
TEST(CommunicatorSparseBytes, TheOwnPieceIsExact) {
  World world(NodeMap::parse("2x1", 2), sparse_options("codec"));
  const std::vector<double> values = test::random_values(3000, 7);
  std::vector<double> first(6000);
  std::vector<double> second(6000);
  std::copy(values.begin(), values.end(), first.begin());
  std::copy(values.begin(), values.end(), second.begin() + 3000);
  const std::vector<Array> inputs = {Array(first, DataType::kFloat32), Array(second, DataType::kFloat32)};
  EXPECT_EQ(world.reduce_scatter(inputs, 1, nullptr), test::sum_of(inputs));
}

}  // namespace
}  // namespace isthmus
