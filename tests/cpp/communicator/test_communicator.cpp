#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <map>
#include <string>
#include <vector>

#include "isthmus/communicator.h"
#include "isthmus/error.h"
#include "tests/cpp/support/error_of.h"
#include "tests/cpp/support/hooked_transport.h"
#include "tests/cpp/support/world.h"

namespace isthmus::test {
namespace {

TEST(Communicator, RefusesUnevenNodes) {
  const NodeMap map = NodeMap::parse("0,1|2", 3);
  EXPECT_EQ(error_of<OptionError>([&] { Communicator(map, 0, {}, Options()); }),
            "nodes 0,1|2: the two-tier paths need equally many ranks on every node");
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
  options.tiers = TierMode::kFlat;
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
    for (const TierMode tiers : {TierMode::kTwo, TierMode::kFlat}) {
      const int size = nodes == std::string("1x1") ? 1 : 2;
      Options options = exact_options();
      options.tiers = tiers;
      World world(NodeMap::parse(nodes, size), options, kTimeout, drop_small_tiers);
      const std::vector<Array> inputs(static_cast<size_t>(size),
                                      Array(std::vector<double>(static_cast<size_t>(2 * size), 3), DataType::kFloat32));
      EXPECT_EQ(world.reduce_scatter(inputs, 1, {}), sum_of(inputs)) << nodes << ", " << options.to_string();
    }
  }
}

TEST(Communicator, DecodesResultsOfItsNodeWhileOthersCross) {
  constexpr int64_t kChunk = 700;
  for (const char* nodes : {"2x2", "0,2|1,3"}) {
    const NodeMap map = NodeMap::parse(nodes, 4);
    std::vector<Array> data = random_inputs(4, kChunk, DataType::kFloat32);
    std::vector<Array> at_wait = data;
    const auto wrap = [&](int rank, Tiers tiers) {
      const auto look = [&, rank] { at_wait[rank] = data[rank]; };
      tiers.inter = std::make_shared<HookedTransport>(tiers.inter, nullptr, nullptr, nullptr, look);
      return tiers;
    };
    World world(map, options_of_codec(Options().codec), kTimeout, wrap);
    run_ranks_well(4, [&](int rank) {
      world.ranks[rank]->all_reduce(data[rank].buffer(),
                                    {{"unit", 4 * kChunk, DataType::kFloat32, Collective::kAllReduce}});
    });
    for (int rank = 0; rank < 4; ++rank) {
      for (int owner = 0; owner < 4; ++owner) {
        const auto chunk_of = [&](const Array& array) {
          const float* first = array.view().part(owner, kChunk).as<float>();
          return std::vector<float>(first, first + kChunk);
        };
        EXPECT_EQ(chunk_of(at_wait[rank]) == chunk_of(data[rank]), map.node(owner) == map.node(rank))
            << nodes << ": rank " << rank << ", chunk of rank " << owner;
      }
    }
  }
}

TEST(Communicator, AverageOfLargeFloat16ValuesDoesNotOverflow) {
  World world(NodeMap::parse("2x8", 16), exact_options());
  const std::vector<Array> inputs(16, Array(std::vector<double>(16 * 5, 60000), DataType::kFloat16));
  EXPECT_EQ(world.reduce_scatter(inputs, 1.0 / 16, {}), inputs.front().values());
}

TEST(Communicator, NonFiniteValuesReachTheirElementsAlone) {
  World world(NodeMap::parse("2x2", 4), exact_options());
  for (const DataType dtype : kFloatingTypes) {
    std::vector<Array> inputs(4, Array(std::vector<double>(8, 1), dtype));
    std::vector<double> special(8, 1);
    special[1] = std::nan("");
    special[6] = std::numeric_limits<double>::infinity();
    inputs[2] = Array(special, dtype);
    const std::vector<double> result = world.reduce_scatter(inputs, 1, {});
    EXPECT_TRUE(std::isnan(result[1]));
    EXPECT_EQ(result[6], std::numeric_limits<double>::infinity());
    for (const int i : {0, 2, 3, 4, 5, 7}) {
      EXPECT_EQ(result[i], 4) << to_string(dtype);
    }
  }
}

TEST(Communicator, ShardMayBeTheOwnChunkOfTheGradient) {
  for (const TierMode tiers : {TierMode::kTwo, TierMode::kFlat}) {
    for (const char* nodes : {"2x2", "4x1", "1x4", "0,2|1,3"}) {
      Options options = exact_options();
      options.tiers = tiers;
      World world(NodeMap::parse(nodes, 4), options);
      std::vector<Array> inputs(4, Array(std::vector<double>{1, 2, 3, 4, 5, 6, 7, 8}, DataType::kFloat32));
      run_ranks_well(4, [&](int rank) {
        const Buffer own = inputs[rank].buffer().part(rank, 2);
        world.ranks[rank]->reduce_scatter(inputs[rank].view(), own, {{"unit", 8, DataType::kFloat32}});
        EXPECT_EQ(inputs[rank].values()[2 * rank], 4 * (2 * rank + 1)) << nodes << ", " << options.to_string();
        EXPECT_EQ(inputs[rank].values()[2 * rank + 1], 4 * (2 * rank + 2));
      });
    }
  }
}

TEST(Communicator, WrongArgumentsAreNamedAndLeaveItUsable) {
  World world(NodeMap::parse("2x2", 4), exact_options());
  KeyedCommunicator& communicator = *world.ranks[0];
  const auto error_of = [&](int64_t elements, DataType dtype, int64_t shard_elements, DataType shard_dtype,
                            const UnitKey& unit) {
    Array gradient(elements, dtype);
    Array shard(shard_elements, shard_dtype);
    return test::error_of([&] { communicator.reduce_scatter(gradient.view(), shard.buffer(), {unit}); });
  };
  EXPECT_EQ(error_of(9, kFloat32, 2, kFloat32, {"u", 9, kFloat32}),
            "reduce_scatter of 9 elements over 4 ranks into 2: expected 4 chunks of the shard's size");
  EXPECT_EQ(error_of(8, kFloat32, 2, DataType::kFloat64, {"u", 8, kFloat32}),
            "reduce_scatter of float32 into float64: expected one floating type");
  EXPECT_EQ(error_of(8, DataType::kByte, 2, DataType::kByte, {"u", 8, DataType::kByte}),
            "reduce_scatter of byte into byte: expected one floating type");
  EXPECT_EQ(error_of(8, kFloat32, 2, kFloat32, {"u", 12, kFloat32}),
            "unit \"u\" has 12 elements of float32, but its gradient has 8 of float32");
  EXPECT_NE(error_of(8, kFloat32, 2, kFloat32, {"u", 8, DataType::kBFloat16}), "");
  const auto all_reduce_error_of = [&](int64_t elements, DataType dtype, const UnitKey& unit) {
    Array data(elements, dtype);
    return test::error_of([&] { communicator.all_reduce(data.buffer(), {unit}); });
  };
  EXPECT_EQ(all_reduce_error_of(8, DataType::kByte, {"u", 8, DataType::kByte, Collective::kAllReduce}),
            "all_reduce of byte: expected a floating type");
  EXPECT_EQ(all_reduce_error_of(8, kFloat32, {"u", 9, kFloat32, Collective::kAllReduce}),
            "unit \"u\" has 9 elements of float32, but its gradient has 8 of float32");
  EXPECT_EQ(all_reduce_error_of(8, kFloat32, {"u", 8, kFloat32}),
            "unit \"u\" is one of reduce_scatter, but is reduced by all_reduce");
  Array shard(2, kFloat32);
  Array gathered(9, kFloat32);
  EXPECT_THROW(communicator.all_gather(shard.view(), gathered.buffer()), Error);
  Array of_another_type(8, DataType::kBFloat16);
  EXPECT_THROW(communicator.all_gather(shard.view(), of_another_type.buffer()), Error);

  const std::vector<Array> inputs(4, Array(std::vector<double>(8, 1), kFloat32));
  EXPECT_EQ(world.reduce_scatter(inputs, 1, {}), sum_of(inputs));
}

TEST(Communicator, EveryReasonForStayingExactIsCounted) {
  Options options = lossy_options();
  options.min_elements = 4 * 100;
  options.units = "*,!*attn*";
  World world(NodeMap::parse("2x2", 4), options);
  const auto reduce = [&](const std::string& unit, int64_t chunk, DataType dtype,
                          std::optional<Reason> why_exact = {}) {
    world.reduce_scatter(random_inputs(4, chunk, dtype), 1, why_exact, unit);
  };
  reduce("mlp", 99, DataType::kFloat32);
  reduce("mlp", 0, DataType::kFloat32);
  reduce("attn", 100, DataType::kFloat32);
  reduce("mlp", 100, DataType::kFloat64);
  reduce("mlp", 100, DataType::kFloat32, Reason::kNotPrepared);
  reduce("mlp", 100, DataType::kFloat32);   // unit 1
  reduce("mlp", 100, DataType::kFloat32);   // the same
  reduce("mlp", 100, DataType::kBFloat16);  // unit 2: another type
  reduce("mlp", 100, DataType::kFloat32);
  const std::map<Reason, int64_t> expected = {{Reason::kTooSmall, 1},
                                              {Reason::kEmpty, 1},
                                              {Reason::kExcluded, 1},
                                              {Reason::kFloat64, 1},
                                              {Reason::kNotPrepared, 1}};
  for (const auto& communicator : world.ranks) {
    const Stats stats = communicator->stats();
    EXPECT_EQ(stats.exact_calls, expected);
    EXPECT_EQ(stats.compressed_calls, 4);
    EXPECT_EQ(stats.num_units, 2);
    EXPECT_EQ(stats.residual_bytes, 2 * 100 * 4);  // one piece for the other node, float32, whatever the input's type
  }
  World exact(NodeMap::parse("2x2", 4), exact_options());
  exact.reduce_scatter(random_inputs(4, 100, DataType::kFloat32), 1, {});
  EXPECT_EQ(exact.ranks[0]->stats().exact_calls, (std::map<Reason, int64_t>{{Reason::kCodecNone, 1}}));
  World one_node(NodeMap::parse("1x4", 4), lossy_options());
  one_node.reduce_scatter(random_inputs(4, 100, DataType::kFloat32), 1, {});
  EXPECT_EQ(one_node.ranks[0]->stats().exact_calls, (std::map<Reason, int64_t>{{Reason::kOneNode, 1}}));
}

TEST(Communicator, AllReducesInASingleTierAreExactAndCounted) {
  Options options = flat_options();
  World world(NodeMap::parse("2x2", 4), options);
  constexpr int64_t kChunk = 1000;
  const std::vector<Array> inputs(4, Array(std::vector<double>(4 * kChunk, 3), DataType::kBFloat16));
  for (const Array& result : world.all_reduce(inputs, 1, {})) {
    EXPECT_EQ(result.values(), sum_of(inputs));
  }
  const Stats stats = world.ranks[1]->stats();
  EXPECT_EQ(stats.exact_calls, (std::map<Reason, int64_t>{{Reason::kFlatAllReduce, 1}}));
  EXPECT_EQ(stats.residual_bytes, 0);
  const CollectiveStats& path = stats.collectives[static_cast<size_t>(Collective::kAllReduce)];
  EXPECT_EQ(path.flat.sent_bytes, 3 * kChunk * 4) << "around the ring in float32";
  EXPECT_EQ(path.inter.sent_bytes, 48 + 2 * kChunk);
  EXPECT_EQ(path.intra.sent_bytes, 2 * (48 + 2 * kChunk));
}

TEST(Communicator, WhatIsRefusedLeavesItUsable) {
  World world(NodeMap::parse("1x1", 1), lossy_options());
  World other(NodeMap::parse("1x1", 1), lossy_options());
  Communicator& communicator = *world.ranks[0];
  Array data(100, DataType::kFloat32);
  const UnitPtr unit = make_unit({"u", 100, DataType::kFloat32, Collective::kAllReduce});
  const UnitPtr weights = make_unit({"u", 100, DataType::kFloat32, Collective::kAllGather});
  communicator.all_reduce(data.buffer(), {unit});
  communicator.gather_weights(data.view(), data.buffer(), weights)->finish();
  const auto all_reduce = [&](Communicator& on, Buffer buffer, const UnitPtr& of) {
    return error_of([&] { on.all_reduce(buffer, {of}); });
  };
  EXPECT_EQ(all_reduce(*other.ranks[0], data.buffer(), unit), "unit \"u\" belongs to another communicator");
  EXPECT_EQ(error_of([&] { other.ranks[0]->Communicator::gather_weights(data.view(), data.buffer(), weights); }),
            "unit \"u\" belongs to another communicator");
  EXPECT_EQ(all_reduce(communicator, data.buffer().slice(0, 99), unit),
            "unit \"u\" has 100 elements of float32, but its gradient has 99 of float32");
  EXPECT_EQ(all_reduce(communicator, data.buffer(), weights),
            "unit \"u\" is one of all_gather, but is reduced by all_reduce");
  EXPECT_EQ(all_reduce(communicator, data.buffer(), nullptr), "all_reduce of no unit");
  EXPECT_FALSE(communicator.is_aborted() || other.ranks[0]->is_aborted());
  EXPECT_EQ(all_reduce(communicator, data.buffer(), unit), "");
  communicator.abort();
  EXPECT_TRUE(communicator.is_aborted());
  EXPECT_NE(all_reduce(communicator, data.buffer(), unit), "");
}

TEST(Communicator, UnitsKeepApart) {
  World world(NodeMap::parse("2x1", 2), lossy_options());
  const std::vector<Array> inputs = random_arrays(2, 4000, DataType::kFloat32);
  world.all_reduce(inputs, 1, {});
  const std::vector<Array> zeros(2, Array(4000, DataType::kFloat32));
  for (const double value : world.reduce_scatter(zeros, 1, {})) {
    ASSERT_EQ(value, 0) << "the reduce-scatter got what the all-reduce kept back";
  }
  world.reduce_scatter(inputs, 1, {}, "another");
  for (const double value : world.reduce_scatter(zeros, 1, {})) {
    ASSERT_EQ(value, 0) << "a unit got what another kept back";
  }
  EXPECT_NE(world.reduce_scatter(zeros, 1, {}, "another"), std::vector<double>(4000));
  const Stats stats = world.ranks[0]->stats();
  EXPECT_EQ(stats.num_units, 3);
  // (N-1) C for each, and C for the result of the all-reduce.
  EXPECT_EQ(stats.residual_bytes, (3 * 2000 + 2000) * 4);
}

TEST(Communicator, SteadyStateTakesNoMoreMemory) {
  for (const Options& options : every_lossy_options()) {
    World world(NodeMap({0, 1, 0, 1}), options);
    const auto one_step = [&] {
      for (const int64_t chunk : {1000, 10, 4000}) {
        world.reduce_scatter(random_inputs(4, chunk, DataType::kBFloat16), 1, {});
        world.all_reduce(random_arrays(4, 4 * chunk + 1, DataType::kBFloat16), 1, {});
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
}  // namespace isthmus::test
