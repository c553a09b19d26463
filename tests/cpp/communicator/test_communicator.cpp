#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <map>
#include <string>
#include <vector>

#include "isthmus/communicator.h"
#include "isthmus/error.h"
#include "tests/cpp/support/world.h"
#include "transport/in_process.h"

namespace isthmus {
namespace {

using test::Array;
using test::exact_options;
using test::exact_path_bound;
using test::kFloatingTypes;
using test::kTimeout;
using test::lossy_options;
using test::random_inputs;
using test::run_ranks_well;
using test::sum_of;
using test::sum_of_magnitudes;
using test::unit_roundoff;
using test::World;

std::vector<NodeMap> all_maps() {
  return {NodeMap::parse("2x2", 4),
          NodeMap::parse("2x8", 16),
          NodeMap::parse("4x2", 8),
          NodeMap::parse("16x1", 16),
          NodeMap::parse("3x3", 9),
          NodeMap::parse("1x4", 4),
          NodeMap::parse("1x1", 1),
          NodeMap({0, 1, 0, 1}),                   // cyclic
          NodeMap({0, 1, 2, 0, 1, 2, 0, 1, 2}),    // cyclic
          NodeMap::parse("0,4,5|1,2,8|3,6,7", 9),  // arbitrary
          NodeMap::parse("0,3|1,2", 4)};
}

class EveryMap : public ::testing::TestWithParam<NodeMap> {};

INSTANTIATE_TEST_SUITE_P(Maps, EveryMap, ::testing::ValuesIn(all_maps()), test::name_of_map);

TEST_P(EveryMap, ReduceScatterStaysWithinItsBoundOfTheFloat64Sum) {
  World world(GetParam(), exact_options());
  const std::vector<double> scales = {1.0, 1.0 / world.size(), 0.3, -1.0, 0.0};
  uint64_t seed = 0;
  for (const DataType dtype : kFloatingTypes) {
    for (const int64_t chunk : {0, 1, 7, 1000}) {
      const double scale = scales[seed % scales.size()];
      const std::vector<Array> inputs = random_inputs(world.size(), chunk, dtype, ++seed);
      const std::vector<double> result = world.reduce_scatter(inputs, scale, nullptr);
      const std::vector<double> sum = sum_of(inputs);
      const std::vector<double> magnitudes = sum_of_magnitudes(inputs);
      for (size_t i = 0; i < sum.size(); ++i) {
        ASSERT_NEAR(result[i], scale * sum[i], exact_path_bound(world.map, dtype, scale, sum[i], magnitudes[i]))
            << to_string(dtype) << ", chunks of " << chunk << ", scale " << scale << ", element " << i;
      }
    }
  }
}

// Small integers are summed without rounding: one misplaced element shows.
TEST_P(EveryMap, ReduceScatterOfSmallIntegersIsExact) {
  for (const char* tiers : {"two", "flat"}) {
    Options options = exact_options();
    options.tiers = tiers;
    World world(GetParam(), options);
    for (const DataType dtype : kFloatingTypes) {
      std::vector<Array> inputs;
      for (int rank = 0; rank < world.size(); ++rank) {
        std::vector<double> values;
        for (int64_t i = 0; i < 65 * world.size(); ++i) {
          values.push_back(static_cast<double>((31 * rank + 7 * i) % 13 - 6));
        }
        inputs.emplace_back(values, dtype);
      }
      std::vector<double> twice = sum_of(inputs);
      for (double& value : twice) {
        value *= 2;
      }
      EXPECT_EQ(world.reduce_scatter(inputs, 2, "not requested"), twice) << tiers << ", " << to_string(dtype);
    }
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
  World world(GetParam(), exact_options());
  const int64_t nodes = world.map.num_nodes();
  const int64_t local = world.map.ranks_per_node();
  constexpr int64_t kChunk = 33;
  for (const DataType dtype : kFloatingTypes) {
    world.reduce_scatter(random_inputs(world.size(), kChunk, dtype), 1, nullptr);
    const int64_t element = element_bytes(dtype);
    const int64_t packet = nodes > 1 ? 48 + (kChunk * element + 7) / 8 * 8 : 0;
    run_ranks_well(world.size(), [&](int rank) {
      const std::vector<std::byte> shard(static_cast<size_t>(kChunk * element));
      std::vector<std::byte> gathered(shard.size() * world.size());
      world.ranks[rank]->all_gather({shard.data(), kChunk, dtype}, {gathered.data(), kChunk * world.size(), dtype});

      const Stats stats = world.ranks[rank]->stats();
      const CollectiveStats& reduce = stats.collectives[static_cast<size_t>(Collective::kReduceScatter)];
      EXPECT_EQ(reduce.intra.sent_bytes, nodes * (local - 1) * kChunk * element);
      EXPECT_EQ(reduce.intra.inter_node_sent_bytes, 0);
      EXPECT_EQ(reduce.inter.sent_bytes, (nodes - 1) * packet);
      EXPECT_EQ(reduce.inter.inter_node_sent_bytes, (nodes - 1) * packet);
      EXPECT_EQ(reduce.flat.sent_bytes, 0);
      EXPECT_EQ(reduce.calls, 1);
      EXPECT_EQ(reduce.packed_calls, world.map.block_placement() ? 0 : 1);
      const CollectiveStats& gather = stats.collectives[static_cast<size_t>(Collective::kAllGather)];
      EXPECT_EQ(gather.intra.sent_bytes, nodes * (local - 1) * kChunk * element);
      EXPECT_EQ(gather.intra.inter_node_sent_bytes, 0);
      EXPECT_EQ(gather.inter.inter_node_sent_bytes, (nodes - 1) * kChunk * element);
      EXPECT_EQ(gather.calls, 1);
      EXPECT_EQ(gather.packed_calls, world.map.block_placement() ? 0 : 1);
      world.ranks[rank]->reset_stats();
      EXPECT_EQ(world.ranks[rank]->stats().collectives[0].calls, 0);
    });
  }
}

TEST_P(EveryMap, AllRanksOfManyStepsAgreeOnWhatIsCompressed) {
  for (Options options : test::every_lossy_options()) {
    options.min_elements = 9 * 64;
    World world(GetParam(), options);
    for (int step = 0; step < 3; ++step) {
      for (const int64_t chunk : {1, 64, 1000}) {
        world.reduce_scatter(random_inputs(world.size(), chunk, DataType::kBFloat16), 1, nullptr);
      }
    }
    const Stats first = world.ranks.front()->stats();
    for (const auto& communicator : world.ranks) {
      const Stats stats = communicator->stats();
      EXPECT_EQ(stats.exact_calls, first.exact_calls);
      EXPECT_EQ(stats.compressed_calls, first.compressed_calls);
      EXPECT_EQ(stats.num_units, first.num_units);
      EXPECT_STREQ(communicator->phase(), "idle");
    }
    EXPECT_EQ(first.compressed_calls > 0, world.map.two_tier());
  }
}

TEST(Communicator, RefusesUnevenNodes) {
  const NodeMap map = NodeMap::parse("0,1|2", 3);
  try {
    Communicator(map, 0, {}, Options());
    FAIL() << "uneven nodes were accepted";
  } catch (const OptionError& error) {
    EXPECT_STREQ(error.what(), "nodes 0,1|2: the two-tier paths need equally many ranks on every node");
  }
}

TEST(Communicator, RefusesTiersAndOptionsThatDoNotFit) {
  const NodeMap map = NodeMap::parse("2x2", 4);
  InProcessHub hub(map);
  Options options = lossy_options();
  EXPECT_THROW(Communicator(map, 4, hub.tiers(map, 0), options), Error);
  EXPECT_THROW(Communicator(map, 1, hub.tiers(map, 0), options), Error) << "another rank's tiers";
  EXPECT_THROW(Communicator(map, 0, {}, options), Error) << "no tiers";
  Tiers without_flat = hub.tiers(map, 0);
  without_flat.flat = nullptr;
  EXPECT_NO_THROW(Communicator(map, 0, without_flat, options));
  options.tiers = "flat";
  EXPECT_THROW(Communicator(map, 0, without_flat, options), Error);
  options = Options();
  options.ratio = 0.5;
  EXPECT_THROW(Communicator(map, 0, hub.tiers(map, 0), options), OptionError);
}

TEST(Communicator, TiersOfOneRankMayBeMissing) {
  const auto drop_small_tiers = [](int /*rank*/, Tiers tiers) {
    for (auto* tier : {&tiers.intra, &tiers.inter, &tiers.flat}) {
      *tier = (*tier)->size() == 1 ? nullptr : *tier;
    }
    return tiers;
  };
  for (const char* nodes : {"2x1", "1x2", "1x1"}) {
    for (const char* tiers : {"two", "flat"}) {
      const int size = nodes == std::string("1x1") ? 1 : 2;
      Options options = exact_options();
      options.tiers = tiers;
      World world(NodeMap::parse(nodes, size), options, kTimeout, drop_small_tiers);
      const std::vector<Array> inputs(static_cast<size_t>(size),
                                      Array(std::vector<double>(static_cast<size_t>(2 * size), 3), DataType::kFloat32));
      EXPECT_EQ(world.reduce_scatter(inputs, 1, nullptr), sum_of(inputs)) << nodes << ", " << tiers;
    }
  }
}

TEST(Communicator, AverageOfLargeFloat16ValuesDoesNotOverflow) {
  World world(NodeMap::parse("2x8", 16), exact_options());
  const std::vector<Array> inputs(16, Array(std::vector<double>(16 * 5, 60000), DataType::kFloat16));
  EXPECT_EQ(world.reduce_scatter(inputs, 1.0 / 16, nullptr), inputs.front().values());
}

TEST(Communicator, NonFiniteValuesReachTheirElementsAlone) {
  World world(NodeMap::parse("2x2", 4), exact_options());
  for (const DataType dtype : kFloatingTypes) {
    std::vector<Array> inputs(4, Array(std::vector<double>(8, 1), dtype));
    std::vector<double> special(8, 1);
    special[1] = std::nan("");
    special[6] = std::numeric_limits<double>::infinity();
    inputs[2] = Array(special, dtype);
    const std::vector<double> result = world.reduce_scatter(inputs, 1, nullptr);
    EXPECT_TRUE(std::isnan(result[1]));
    EXPECT_EQ(result[6], std::numeric_limits<double>::infinity());
    for (const int i : {0, 2, 3, 4, 5, 7}) {
      EXPECT_EQ(result[i], 4) << to_string(dtype);
    }
  }
}

TEST(Communicator, ShardMayBeTheOwnChunkOfTheGradient) {
  for (const char* tiers : {"two", "flat"}) {
    for (const char* nodes : {"2x2", "4x1", "1x4", "0,2|1,3"}) {
      Options options = exact_options();
      options.tiers = tiers;
      World world(NodeMap::parse(nodes, 4), options);
      std::vector<Array> inputs(4, Array(std::vector<double>{1, 2, 3, 4, 5, 6, 7, 8}, DataType::kFloat32));
      run_ranks_well(4, [&](int rank) {
        const Buffer own = inputs[rank].buffer().part(rank, 2);
        world.ranks[rank]->reduce_scatter(inputs[rank].view(), own, {{"unit", 8, DataType::kFloat32}});
        EXPECT_EQ(inputs[rank].values()[2 * rank], 4 * (2 * rank + 1)) << nodes << ", " << tiers;
        EXPECT_EQ(inputs[rank].values()[2 * rank + 1], 4 * (2 * rank + 2));
      });
    }
  }
}

TEST(Communicator, WrongArgumentsAreNamedAndLeaveItUsable) {
  World world(NodeMap::parse("2x2", 4), exact_options());
  Communicator& communicator = *world.ranks[0];
  const auto error_of = [&](int64_t elements, DataType dtype, int64_t shard_elements, DataType shard_dtype,
                            const UnitKey& unit) -> std::string {
    Array gradient(elements, dtype);
    Array shard(shard_elements, shard_dtype);
    try {
      communicator.reduce_scatter(gradient.view(), shard.buffer(), {unit});
    } catch (const Error& error) {
      return error.what();
    }
    return "";
  };
  constexpr DataType kFloat32 = DataType::kFloat32;
  EXPECT_EQ(error_of(9, kFloat32, 2, kFloat32, {"u", 9, kFloat32}),
            "reduce_scatter of 9 elements over 4 ranks into 2: expected 4 chunks of the shard's size");
  EXPECT_EQ(error_of(8, kFloat32, 2, DataType::kFloat64, {"u", 8, kFloat32}),
            "reduce_scatter of float32 into float64: expected one floating type");
  EXPECT_EQ(error_of(8, DataType::kByte, 2, DataType::kByte, {"u", 8, DataType::kByte}),
            "reduce_scatter of byte into byte: expected one floating type");
  EXPECT_EQ(error_of(8, kFloat32, 2, kFloat32, {"u", 12, kFloat32}),
            "unit \"u\" has 12 elements of float32, but its gradient has 8 of float32");
  EXPECT_NE(error_of(8, kFloat32, 2, kFloat32, {"u", 8, DataType::kBFloat16}), "");
  Array shard(2, kFloat32);
  Array gathered(9, kFloat32);
  EXPECT_THROW(communicator.all_gather(shard.view(), gathered.buffer()), Error);
  Array of_another_type(8, DataType::kBFloat16);
  EXPECT_THROW(communicator.all_gather(shard.view(), of_another_type.buffer()), Error);

  const std::vector<Array> inputs(4, Array(std::vector<double>(8, 1), kFloat32));
  EXPECT_EQ(world.reduce_scatter(inputs, 1, nullptr), sum_of(inputs));
}

TEST(Communicator, EveryReasonForStayingExactIsCounted) {
  Options options = lossy_options();
  options.min_elements = 4 * 100;
  options.units = "*,!*attn*";
  options.max_units = 2;
  World world(NodeMap::parse("2x2", 4), options);
  const auto reduce = [&](const std::string& unit, int64_t chunk, DataType dtype, const char* why_exact = nullptr) {
    world.reduce_scatter(random_inputs(4, chunk, dtype), 1, why_exact, unit);
  };
  reduce("mlp", 99, DataType::kFloat32);
  reduce("mlp", 0, DataType::kFloat32);
  reduce("attn", 100, DataType::kFloat32);
  reduce("mlp", 100, DataType::kFloat64);
  reduce("mlp", 100, DataType::kFloat32, "not requested");
  reduce("mlp", 100, DataType::kFloat32);   // unit 1
  reduce("mlp", 100, DataType::kFloat32);   // the same
  reduce("mlp", 100, DataType::kBFloat16);  // unit 2: another type
  reduce("mlp", 101, DataType::kFloat32);   // another size: full
  reduce("mlp", 100, DataType::kFloat32);   // unit 1 is still there
  const std::map<std::string, int64_t> expected = {{"below min_elements", 1},
                                                   {"empty", 1},
                                                   {"excluded by policy (units)", 1},
                                                   {"float64", 1},
                                                   {"not requested", 1},
                                                   {"more than max_units units", 1}};
  for (const auto& communicator : world.ranks) {
    const Stats stats = communicator->stats();
    EXPECT_EQ(stats.exact_calls, expected);
    EXPECT_EQ(stats.compressed_calls, 4);
    EXPECT_EQ(stats.num_units, 2);
    EXPECT_EQ(stats.residual_bytes, 2 * 100 * 4);  // one piece for the other node, float32, whatever the input's type
  }
  World exact(NodeMap::parse("2x2", 4), exact_options());
  exact.reduce_scatter(random_inputs(4, 100, DataType::kFloat32), 1, nullptr);
  EXPECT_EQ(exact.ranks[0]->stats().exact_calls, (std::map<std::string, int64_t>{{"codec none", 1}}));
  World one_node(NodeMap::parse("1x4", 4), lossy_options());
  one_node.reduce_scatter(random_inputs(4, 100, DataType::kFloat32), 1, nullptr);
  EXPECT_EQ(one_node.ranks[0]->stats().exact_calls, (std::map<std::string, int64_t>{{"one node", 1}}));
}

TEST(Communicator, SteadyStateTakesNoMoreMemory) {
  for (const Options& options : test::every_lossy_options()) {
    World world(NodeMap({0, 1, 0, 1}), options);
    const auto one_step = [&] {
      for (const int64_t chunk : {1000, 10, 4000}) {
        world.reduce_scatter(random_inputs(4, chunk, DataType::kBFloat16), 1, nullptr);
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

TEST(UnitKey, HashIsStableAndSeesEveryField) {
  const UnitKey key{"blocks.1", 1024, DataType::kBFloat16};
  EXPECT_EQ(key.hash(), UnitKey(key).hash());
  EXPECT_EQ(key.hash(), 0x15ce9a8f9fa3ff38u) << "packets of another build would be refused";
  EXPECT_NE(key.hash(), (UnitKey{"blocks.2", 1024, DataType::kBFloat16}.hash()));
  EXPECT_NE(key.hash(), (UnitKey{"blocks.1", 1025, DataType::kBFloat16}.hash()));
  EXPECT_NE(key.hash(), (UnitKey{"blocks.1", 1024, DataType::kFloat32}.hash()));
  EXPECT_NE(key.hash(), (UnitKey{"blocks.1", 1024, DataType::kBFloat16, Collective::kAllReduce}.hash()));
  EXPECT_NE(key.hash(), (UnitKey{"blocks.1", 1024, DataType::kBFloat16, Collective::kReduceScatter, 1}.hash()));
}

}  // namespace
}  // namespace isthmus
