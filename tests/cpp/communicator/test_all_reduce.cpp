#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <string>
#include <vector>

#include "isthmus/communicator.h"
#include "isthmus/error.h"
#include "tests/cpp/support/equal_bits.h"
#include "tests/cpp/support/world.h"

namespace isthmus {
namespace {

using test::Array;
using test::exact_options;
using test::exact_path_bound;
using test::expect_equal_bits;
using test::kFloatingTypes;
using test::lossy_options;
using test::random_arrays;
using test::sum_of;
using test::sum_of_magnitudes;
using test::unit_roundoff;
using test::World;

std::vector<NodeMap> all_maps() {
  return {NodeMap::parse("1x1", 1),
          NodeMap::parse("1x4", 4),
          NodeMap::parse("4x1", 4),
          NodeMap::parse("2x2", 4),
          NodeMap::parse("3x2", 6),
          NodeMap({0, 1, 0, 1}),                    // cyclic
          NodeMap::parse("0,4,5|1,2,8|3,6,7", 9)};  // arbitrary
}

// Around what is divisible by the number of ranks, where padding begins and ends.
std::vector<int64_t> difficult_sizes(int64_t world_size) {
  return {0, 1, world_size - 1, world_size, world_size + 1, 2 * world_size - 1, 65 * world_size, 65 * world_size + 7};
}

class AllReduceOnEveryMap : public ::testing::TestWithParam<NodeMap> {};
INSTANTIATE_TEST_SUITE_P(Maps, AllReduceOnEveryMap, ::testing::ValuesIn(all_maps()), test::name_of_map);

// Small integers are summed without rounding: one misplaced element shows.
TEST_P(AllReduceOnEveryMap, SumOfSmallIntegersIsExact) {
  for (const char* tiers : {"two", "flat"}) {
    Options options = exact_options();
    options.tiers = tiers;
    World world(GetParam(), options);
    for (const DataType dtype : kFloatingTypes) {
      for (const int64_t elements : difficult_sizes(world.size())) {
        std::vector<Array> inputs;
        for (int rank = 0; rank < world.size(); ++rank) {
          std::vector<double> values;
          for (int64_t i = 0; i < elements; ++i) {
            values.push_back(static_cast<double>((31 * rank + 7 * i) % 13 - 6));
          }
          inputs.emplace_back(values, dtype);
        }
        std::vector<double> twice = sum_of(inputs);
        for (double& value : twice) {
          value *= 2;
        }
        for (const Array& result : world.all_reduce(inputs, 2, nullptr)) {
          ASSERT_EQ(result.values(), twice) << tiers << ", " << elements << " elements of " << to_string(dtype);
        }
      }
    }
  }
}

TEST_P(AllReduceOnEveryMap, StaysWithinTheBoundOfTheFloat64SumWithEqualBits) {
  World world(GetParam(), exact_options());
  const std::vector<double> scales = {1.0, 1.0 / world.size(), 0.3, -1.0, 0.0};
  uint64_t seed = 0;
  for (const DataType dtype : kFloatingTypes) {
    for (const int64_t elements : difficult_sizes(world.size())) {
      const double scale = scales[seed % scales.size()];
      const std::vector<Array> inputs = random_arrays(world.size(), elements, dtype, ++seed);
      const std::vector<Array> results = world.all_reduce(inputs, scale, nullptr);
      expect_equal_bits(results);
      const std::vector<double> result = results[0].values();
      const std::vector<double> sum = sum_of(inputs);
      const std::vector<double> magnitudes = sum_of_magnitudes(inputs);
      for (size_t i = 0; i < sum.size(); ++i) {
        ASSERT_NEAR(result[i], scale * sum[i], exact_path_bound(world.map, dtype, scale, sum[i], magnitudes[i]))
            << elements << " elements of " << to_string(dtype) << ", scale " << scale << ", element " << i;
      }
    }
  }
}

TEST_P(AllReduceOnEveryMap, LossyResultsHaveEqualBitsOnAllRanksInEveryStep) {
  for (const Options& options : test::every_lossy_options()) {
    World world(GetParam(), options);
    for (int step = 0; step < 3; ++step) {
      for (const DataType dtype : kFloatingTypes) {
        for (const int64_t elements : {1, 700, 20011}) {
          expect_equal_bits(world.all_reduce(random_arrays(world.size(), elements, dtype, 10 + step), 0.5, nullptr));
        }
      }
    }
    const Stats first = world.ranks[0]->stats();
    for (const auto& communicator : world.ranks) {
      EXPECT_EQ(communicator->stats().compressed_calls, first.compressed_calls);
      EXPECT_EQ(communicator->stats().exact_calls, first.exact_calls);
      EXPECT_STREQ(communicator->phase(), "idle");
    }
    EXPECT_EQ(first.compressed_calls, world.map.two_tier() ? 3 * 3 * 3 : 0) << options.codec;
  }
}

// Every rank's traffic against docs/algorithms.md, to the byte.
TEST_P(AllReduceOnEveryMap, PayloadIsWhatTheFormulasSay) {
  const int64_t nodes = GetParam().num_nodes();
  const int64_t local = GetParam().ranks_per_node();
  const int64_t size = nodes * local;
  const auto is_lossy = [&](const std::string& name, DataType dtype) {
    return name != "none" && nodes > 1 && dtype != DataType::kFloat64;
  };
  for (const std::string& codec : test::every_codec()) {
    const Options options = test::options_of_codec(codec);
    World world(GetParam(), options);
    for (const DataType dtype : kFloatingTypes) {
      for (const int64_t elements : {33 * size, 33 * size - 1}) {
        world.all_reduce(random_arrays(world.size(), elements, dtype), 1, nullptr);
        const auto chosen = make_codec(is_lossy(codec, dtype) ? codec : "none", options, dtype, 1);
        const int64_t packet = chosen->packet_bytes(33);
        for (const auto& communicator : world.ranks) {
          const CollectiveStats stats = communicator->stats().collectives[static_cast<size_t>(Collective::kAllReduce)];
          EXPECT_EQ(stats.intra.sent_bytes, nodes * (local - 1) * (33 * element_bytes(dtype) + packet));
          EXPECT_EQ(stats.intra.inter_node_sent_bytes, 0);
          EXPECT_EQ(stats.inter.sent_bytes, 2 * (nodes - 1) * packet);
          EXPECT_EQ(stats.inter.inter_node_sent_bytes, 2 * (nodes - 1) * packet);
          EXPECT_EQ(stats.flat.sent_bytes, 0);
          EXPECT_EQ(stats.calls, 1);
          const bool packed = elements % size != 0 || (!world.map.block_placement() && local > 1);
          EXPECT_EQ(stats.packed_calls, packed ? 1 : 0) << elements << " elements of " << to_string(dtype);
          communicator->reset_stats();
        }
      }
    }
  }
}

TEST(AllReduce, InASingleTierItIsExactAndCounted) {
  Options options = lossy_options();
  options.tiers = "flat";
  World world(NodeMap::parse("2x2", 4), options);
  constexpr int64_t kChunk = 1000;
  const std::vector<Array> inputs(4, Array(std::vector<double>(4 * kChunk, 3), DataType::kBFloat16));
  for (const Array& result : world.all_reduce(inputs, 1, nullptr)) {
    EXPECT_EQ(result.values(), sum_of(inputs));
  }
  const Stats stats = world.ranks[1]->stats();
  EXPECT_EQ(stats.exact_calls, (std::map<std::string, int64_t>{{"all-reduce in a single tier", 1}}));
  EXPECT_EQ(stats.residual_bytes, 0);
  const CollectiveStats& path = stats.collectives[static_cast<size_t>(Collective::kAllReduce)];
  EXPECT_EQ(path.flat.sent_bytes, 3 * kChunk * 4) << "around the ring in float32";
  EXPECT_EQ(path.inter.sent_bytes, 48 + 2 * kChunk);
  EXPECT_EQ(path.intra.sent_bytes, 2 * (48 + 2 * kChunk));
}

TEST(AllReduce, WrongArgumentsAreNamedAndLeaveItUsable) {
  World world(NodeMap::parse("2x2", 4), exact_options());
  const auto error_of = [&](int64_t elements, DataType dtype, const UnitKey& unit) -> std::string {
    Array data(elements, dtype);
    try {
      world.ranks[0]->all_reduce(data.buffer(), {unit});
    } catch (const Error& error) {
      return error.what();
    }
    return "";
  };
  constexpr DataType kFloat32 = DataType::kFloat32;
  EXPECT_EQ(error_of(8, DataType::kByte, {"u", 8, DataType::kByte, Collective::kAllReduce}),
            "all_reduce of byte: expected a floating type");
  EXPECT_EQ(error_of(8, kFloat32, {"u", 9, kFloat32, Collective::kAllReduce}),
            "unit \"u\" has 9 elements of float32, but its gradient has 8 of float32");
  EXPECT_EQ(error_of(8, kFloat32, {"u", 8, kFloat32}),
            "unit \"u\" is one of reduce_scatter, but is reduced by all_reduce");
  const std::vector<Array> inputs(4, Array(std::vector<double>(8, 1), kFloat32));
  EXPECT_EQ(world.all_reduce(inputs, 1, nullptr)[0].values(), sum_of(inputs));
}

TEST(AllReduce, UnitsOfBothCollectivesKeepApart) {
  World world(NodeMap::parse("2x1", 2), lossy_options());
  const std::vector<Array> inputs = random_arrays(2, 4000, DataType::kFloat32);
  world.all_reduce(inputs, 1, nullptr);
  const std::vector<Array> zeros(2, Array(4000, DataType::kFloat32));
  for (const double value : world.reduce_scatter(zeros, 1, nullptr)) {
    ASSERT_EQ(value, 0) << "the reduce-scatter got what the all-reduce kept back";
  }
  const Stats stats = world.ranks[0]->stats();
  EXPECT_EQ(stats.num_units, 2);
  // (N-1) C for each, and C for the result.
  EXPECT_EQ(stats.residual_bytes, (2000 + 2000 + 2000) * 4);
}

TEST(AllReduce, SteadyStateTakesNoMoreMemory) {
  for (const Options& options : test::every_lossy_options()) {
    World world(NodeMap({0, 1, 0, 1}), options);
    const auto one_step = [&] {
      for (const int64_t elements : {4001, 40, 16000}) {
        world.all_reduce(random_arrays(4, elements, DataType::kBFloat16), 1, nullptr);
      }
      return world.ranks[0]->stats();
    };
    one_step();
    const Stats second = one_step();
    const Stats third = one_step();
    EXPECT_GT(second.scratch_bytes, 0);
    EXPECT_EQ(third.scratch_bytes, second.scratch_bytes);
    EXPECT_EQ(third.residual_bytes, second.residual_bytes);
  }
}

}  // namespace
}  // namespace isthmus
