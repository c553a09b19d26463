// Reductions and gathers on every kind of map: sums, equal bits on all ranks, traffic.
#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "isthmus/communicator.h"
#include "tests/cpp/support/world.h"

namespace isthmus::test {
namespace {

std::vector<NodeMap> all_maps() {
  return {NodeMap::parse("1x1", 1),
          NodeMap::parse("1x4", 4),
          NodeMap::parse("4x1", 4),
          NodeMap::parse("2x2", 4),
          NodeMap::parse("2x8", 16),
          NodeMap::parse("3x2", 6),
          NodeMap({0, 1, 0, 1}),                   // cyclic
          NodeMap::parse("0,4,5|1,2,8|3,6,7", 9),  // arbitrary
          NodeMap::parse("0,3|1,2", 4)};
}

// Around what is divisible by the number of ranks, where padding begins and ends.
std::vector<int64_t> difficult_sizes(int64_t world_size) {
  return {0, 1, world_size - 1, world_size, world_size + 1, 2 * world_size - 1, 65 * world_size, 65 * world_size + 7};
}

class EveryMap : public ::testing::TestWithParam<NodeMap> {};
INSTANTIATE_TEST_SUITE_P(Maps, EveryMap, ::testing::ValuesIn(all_maps()), name_of_map);

// Small integers are summed without rounding: one misplaced element shows.
TEST_P(EveryMap, SumsOfSmallIntegersAreExact) {
  for (const TierMode tiers : {TierMode::kTwo, TierMode::kFlat}) {
    Options options = exact_options();
    options.tiers = tiers;
    World world(GetParam(), options);
    for (const DataType dtype : kFloatingTypes) {
      for (const int64_t elements : difficult_sizes(world.size())) {
        SCOPED_TRACE(options.to_string() + ", " + std::to_string(elements) + " elements of " + to_string(dtype));
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
        for (const Array& result : world.all_reduce(inputs, 2, {})) {
          ASSERT_EQ(result.values(), twice);
        }
        if (elements % world.size() == 0) {
          ASSERT_EQ(world.reduce_scatter(inputs, 2, {}), twice);
        }
      }
    }
  }
}

TEST_P(EveryMap, SumsStayWithinTheirBoundOfTheFloat64Sum) {
  World world(GetParam(), exact_options());
  const std::vector<double> scales = {1.0, 1.0 / world.size(), 0.3, -1.0, 0.0};
  uint64_t seed = 0;
  for (const DataType dtype : kFloatingTypes) {
    for (const int64_t elements : difficult_sizes(world.size())) {
      const double scale = scales[seed % scales.size()];
      const std::vector<Array> inputs = random_arrays(world.size(), elements, dtype, ++seed);
      const std::vector<double> sum = sum_of(inputs);
      const std::vector<double> magnitudes = sum_of_magnitudes(inputs);
      const auto expect_within_bound = [&](const std::vector<double>& result) {
        for (size_t i = 0; i < sum.size(); ++i) {
          ASSERT_NEAR(result[i], scale * sum[i], exact_path_bound(world.map, dtype, scale, sum[i], magnitudes[i]))
              << elements << " elements of " << to_string(dtype) << ", scale " << scale << ", element " << i;
        }
      };
      const std::vector<Array> results = world.all_reduce(inputs, scale, {});
      expect_equal_bits(results);
      expect_within_bound(results[0].values());
      if (elements % world.size() == 0) {
        expect_within_bound(world.reduce_scatter(inputs, scale, {}));
      }
    }
  }
}

TEST_P(EveryMap, LossyResultsHaveEqualBitsOnAllRanksInEveryStep) {
  for (const Options& options : every_lossy_options()) {
    World world(GetParam(), options);
    for (int step = 0; step < 3; ++step) {
      for (const DataType dtype : kFloatingTypes) {
        for (const int64_t elements : {1, 700, 20011}) {
          expect_equal_bits(world.all_reduce(random_arrays(world.size(), elements, dtype, 10 + step), 0.5, {}));
        }
        world.reduce_scatter(random_inputs(world.size(), 700, dtype), 1, {});
      }
    }
    const Stats first = world.ranks[0]->stats();
    for (const auto& communicator : world.ranks) {
      const Stats stats = communicator->stats();
      EXPECT_EQ(stats.compressed_calls, first.compressed_calls);
      EXPECT_EQ(stats.exact_calls, first.exact_calls);
      EXPECT_EQ(stats.num_units, first.num_units);
      EXPECT_STREQ(to_string(communicator->phase()), "idle");
    }
    EXPECT_EQ(first.compressed_calls, world.map.two_tier() ? 3 * 3 * 4 : 0) << options.codec;
  }
}

TEST_P(EveryMap, AllGatherIsBitEqualForEveryType) {
  World world(GetParam(), exact_options());
  for (const DataType dtype : {DataType::kByte, DataType::kFloat32, DataType::kBFloat16, DataType::kFloat64}) {
    for (const int64_t chunk : {0, 1, 7, 1000}) {
      for (const bool in_place : {false, true}) {
        // Any bits, signalling NaNs included.
        Array expected(world.size() * chunk, dtype);
        for (size_t i = 0; i < expected.bytes().size(); ++i) {
          expected.bytes()[i] = static_cast<std::byte>(i * 131 + i / 251);
        }
        run_ranks_well(world.size(), [&](int rank) {
          Array shard(chunk, dtype);
          Array gathered(world.size() * chunk, dtype);
          const Buffer own = in_place ? gathered.buffer().part(rank, chunk) : shard.buffer();
          convert(expected.view().part(rank, chunk), own);
          world.ranks[rank]->all_gather(own, gathered.buffer());
          EXPECT_TRUE(gathered.bytes() == expected.bytes()) << to_string(dtype) << ", chunks of " << chunk;
        });
      }
    }
  }
}

// Every rank's traffic against docs/algorithms.md, to the byte.
TEST_P(EveryMap, PayloadIsWhatTheFormulasSay) {
  const int64_t nodes = GetParam().num_nodes();
  const int64_t local = GetParam().ranks_per_node();
  const int64_t size = nodes * local;
  const bool in_blocks = GetParam().block_placement();
  const auto expect_payload = [](Communicator& communicator, Collective collective, int64_t intra_bytes,
                                 int64_t inter_bytes, bool is_packed) {
    SCOPED_TRACE(to_string(collective));
    const CollectiveStats stats = communicator.stats().collectives[static_cast<size_t>(collective)];
    EXPECT_EQ(stats.intra.sent_bytes, intra_bytes);
    EXPECT_EQ(stats.intra.inter_node_sent_bytes, 0);
    EXPECT_EQ(stats.inter.sent_bytes, inter_bytes);
    EXPECT_EQ(stats.inter.inter_node_sent_bytes, inter_bytes);
    EXPECT_EQ(stats.flat.sent_bytes, 0);
    EXPECT_EQ(stats.calls, 1);
    EXPECT_EQ(stats.packed_calls, is_packed ? 1 : 0);
  };
  for (const std::string& codec : codec_names()) {
    const Options options = options_of_codec(codec);
    World world(GetParam(), options);
    for (const DataType dtype : kFloatingTypes) {
      for (const int64_t elements : {33 * size, 33 * size - 1}) {
        SCOPED_TRACE(codec + ", " + std::to_string(elements) + " elements of " + to_string(dtype));
        world.all_reduce(random_arrays(world.size(), elements, dtype), 1, {});
        world.reduce_scatter(random_inputs(world.size(), 33, dtype), 1, {});
        const bool is_lossy = nodes > 1 && dtype != DataType::kFloat64;
        const int64_t packet = make_codec(is_lossy ? codec : "none", options, dtype, 1)->packet_bytes(33);
        const int64_t chunk = 33 * element_bytes(dtype);
        run_ranks_well(world.size(), [&](int rank) {
          Communicator& communicator = *world.ranks[rank];
          Array gathered(33 * size, dtype);
          communicator.all_gather(Array(33, dtype).view(), gathered.buffer());
          expect_payload(communicator, Collective::kAllReduce, nodes * (local - 1) * (chunk + packet),
                         2 * (nodes - 1) * packet, elements % size != 0 || (!in_blocks && local > 1));
          expect_payload(communicator, Collective::kReduceScatter, nodes * (local - 1) * chunk, (nodes - 1) * packet,
                         !in_blocks);
          expect_payload(communicator, Collective::kAllGather, nodes * (local - 1) * chunk, (nodes - 1) * chunk,
                         !in_blocks);
          communicator.reset_stats();
          EXPECT_EQ(communicator.stats().collectives[0].calls, 0);
        });
      }
    }
  }
}

}  // namespace
}  // namespace isthmus::test
