#include <gtest/gtest.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstring>
#include <functional>
#include <limits>
#include <memory>
#include <mutex>
#include <string>
#include <utility>
#include <vector>

#include "codec/packet_header.h"
#include "codec/tagc_flat.h"
#include "isthmus/communicator.h"
#include "isthmus/error.h"
#include "ranks.h"
#include "transport/in_process.h"
#include "typed_data.h"

namespace isthmus {
namespace {

using std::chrono::milliseconds;
using test::Array;
using test::kFloatingTypes;
using test::Outcome;
using test::random_values;
using test::run_ranks;
using test::run_ranks_well;
using test::unit_roundoff;

constexpr milliseconds kTimeout(20000);
constexpr milliseconds kShortTimeout(300);

Options exact_options() {
  Options options;
  options.codec = "none";
  return options;
}

Options lossy_options() {
  Options options;
  options.min_elements = 0;
  return options;
}

using Wrap = std::function<Tiers(int rank, Tiers tiers)>;

// A communicator for every rank of a map, over in-process tiers.
class World {
 public:
  World(const NodeMap& node_map, const Options& options, milliseconds timeout = kTimeout, const Wrap& wrap = {})
      : map(node_map), hub(map, timeout) {
    for (int rank = 0; rank < map.world_size(); ++rank) {
      const Tiers tiers = hub.tiers(map, rank);
      ranks.push_back(std::make_unique<Communicator>(map, rank, wrap ? wrap(rank, tiers) : tiers, options));
    }
  }

  int size() const { return map.world_size(); }

  // Every rank's shard, end to end: where inputs[r] is rank r's gradient.
  std::vector<double> reduce_scatter(const std::vector<Array>& inputs, double scale, bool compress,
                                     const std::string& unit = "unit") {
    std::vector<std::vector<double>> shards(static_cast<size_t>(size()));
    run_ranks_well(size(), [&](int rank) {
      const ConstBuffer gradient = inputs[rank].view();
      Array shard(gradient.num_elements / size(), gradient.dtype);
      ranks[rank]->reduce_scatter(gradient, shard.buffer(), scale, {unit, gradient.num_elements, gradient.dtype},
                                  compress);
      shards[rank] = shard.values();
    });
    std::vector<double> whole;
    for (const std::vector<double>& shard : shards) {
      whole.insert(whole.end(), shard.begin(), shard.end());
    }
    return whole;
  }

  NodeMap map;
  InProcessHub hub;
  std::vector<std::unique_ptr<Communicator>> ranks;
};

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

std::vector<Array> random_inputs(int world_size, int64_t chunk_elements, DataType dtype, uint64_t seed = 1) {
  std::vector<Array> inputs;
  for (int rank = 0; rank < world_size; ++rank) {
    inputs.emplace_back(random_values(world_size * chunk_elements, seed * 1000 + rank), dtype);
  }
  return inputs;
}

// In float64, of the values as they are in their type.
std::vector<double> sum_of(const std::vector<Array>& inputs) {
  std::vector<double> sum(inputs.front().values().size());
  for (const Array& input : inputs) {
    const std::vector<double> values = input.values();
    std::transform(values.begin(), values.end(), sum.begin(), sum.begin(), std::plus<>());
  }
  return sum;
}
std::vector<double> sum_of_magnitudes(const std::vector<Array>& inputs) {
  std::vector<double> sum(inputs.front().values().size());
  for (const Array& input : inputs) {
    const std::vector<double> values = input.values();
    std::transform(values.begin(), values.end(), sum.begin(), sum.begin(),
                   [](double value, double total) { return total + std::fabs(value); });
  }
  return sum;
}

// The bound of docs/algorithms.md, "What codec none guarantees".
double exact_path_bound(const NodeMap& map, DataType dtype, double scale, double sum, double magnitudes) {
  const double u_sum = unit_roundoff(accumulate_dtype(dtype));
  const double u_wire = map.num_nodes() > 1 && dtype != accumulate_dtype(dtype) ? unit_roundoff(dtype) : 0;
  const int additions = map.ranks_per_node() + map.num_nodes() - 2;
  const double underflow = dtype == DataType::kFloat16 ? (map.world_size() + 1) * 0x1p-24 : 0;
  const double before_scaling = (u_wire + additions * u_sum * 1.1) * magnitudes + underflow;
  return std::fabs(scale) * (before_scaling + (unit_roundoff(dtype) + 2 * u_sum) * 1.1 * std::fabs(sum)) + underflow;
}

class EveryMap : public ::testing::TestWithParam<NodeMap> {};

INSTANTIATE_TEST_SUITE_P(Maps, EveryMap, ::testing::ValuesIn(all_maps()), [](const auto& parameter) {
  std::string name = parameter.param.to_string();
  std::replace_if(
      name.begin(), name.end(), [](char letter) { return std::isalnum(letter) == 0; }, '_');
  return name;
});

TEST_P(EveryMap, ReduceScatterStaysWithinItsBoundOfTheFloat64Sum) {
  World world(GetParam(), exact_options());
  const std::vector<double> scales = {1.0, 1.0 / world.size(), 0.3, -1.0, 0.0};
  uint64_t seed = 0;
  for (const DataType dtype : kFloatingTypes) {
    for (const int64_t chunk : {0, 1, 7, 1000}) {
      const double scale = scales[seed % scales.size()];
      const std::vector<Array> inputs = random_inputs(world.size(), chunk, dtype, ++seed);
      const std::vector<double> result = world.reduce_scatter(inputs, scale, true);
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
      EXPECT_EQ(world.reduce_scatter(inputs, 2, false), twice) << tiers << ", " << to_string(dtype);
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
    world.reduce_scatter(random_inputs(world.size(), kChunk, dtype), 1, true);
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
  Options options = lossy_options();
  options.min_elements = 9 * 64;
  World world(GetParam(), options);
  for (int step = 0; step < 3; ++step) {
    for (const int64_t chunk : {1, 64, 1000}) {
      world.reduce_scatter(random_inputs(world.size(), chunk, DataType::kBFloat16), 1, true);
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
  Options options;
  EXPECT_THROW(Communicator(map, 4, hub.tiers(map, 0), options), Error);
  EXPECT_THROW(Communicator(map, 1, hub.tiers(map, 0), options), Error) << "another rank's tiers";
  EXPECT_THROW(Communicator(map, 0, {}, options), Error) << "no tiers";
  Tiers without_flat = hub.tiers(map, 0);
  without_flat.flat = nullptr;
  EXPECT_NO_THROW(Communicator(map, 0, without_flat, options));
  options.tiers = "flat";
  EXPECT_THROW(Communicator(map, 0, without_flat, options), Error);
  options = Options();
  options.ratio = 0;
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
      EXPECT_EQ(world.reduce_scatter(inputs, 1, true), sum_of(inputs)) << nodes << ", " << tiers;
    }
  }
}

TEST(Communicator, AverageOfLargeFloat16ValuesDoesNotOverflow) {
  World world(NodeMap::parse("2x8", 16), exact_options());
  const std::vector<Array> inputs(16, Array(std::vector<double>(16 * 5, 60000), DataType::kFloat16));
  EXPECT_EQ(world.reduce_scatter(inputs, 1.0 / 16, true), inputs.front().values());
}

TEST(Communicator, NonFiniteValuesReachTheirElementsAlone) {
  World world(NodeMap::parse("2x2", 4), exact_options());
  for (const DataType dtype : kFloatingTypes) {
    std::vector<Array> inputs(4, Array(std::vector<double>(8, 1), dtype));
    std::vector<double> special(8, 1);
    special[1] = std::nan("");
    special[6] = std::numeric_limits<double>::infinity();
    inputs[2] = Array(special, dtype);
    const std::vector<double> result = world.reduce_scatter(inputs, 1, true);
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
        world.ranks[rank]->reduce_scatter(inputs[rank].view(), own, 1, {"unit", 8, DataType::kFloat32}, true);
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
      communicator.reduce_scatter(gradient.view(), shard.buffer(), 1, unit, true);
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
  EXPECT_EQ(world.reduce_scatter(inputs, 1, true), sum_of(inputs));
}

TEST(Communicator, EveryReasonForStayingExactIsCounted) {
  Options options = lossy_options();
  options.min_elements = 4 * 100;
  options.units = "*,!*attn*";
  options.max_units = 2;
  World world(NodeMap::parse("2x2", 4), options);
  const auto reduce = [&](const std::string& unit, int64_t chunk, DataType dtype, bool compress = true) {
    world.reduce_scatter(random_inputs(4, chunk, dtype), 1, compress, unit);
  };
  reduce("mlp", 99, DataType::kFloat32);
  reduce("mlp", 0, DataType::kFloat32);
  reduce("attn", 100, DataType::kFloat32);
  reduce("mlp", 100, DataType::kFloat64);
  reduce("mlp", 100, DataType::kFloat32, false);
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
  exact.reduce_scatter(random_inputs(4, 100, DataType::kFloat32), 1, true);
  EXPECT_EQ(exact.ranks[0]->stats().exact_calls, (std::map<std::string, int64_t>{{"codec none", 1}}));
  World one_node(NodeMap::parse("1x4", 4), lossy_options());
  one_node.reduce_scatter(random_inputs(4, 100, DataType::kFloat32), 1, true);
  EXPECT_EQ(one_node.ranks[0]->stats().exact_calls, (std::map<std::string, int64_t>{{"one node", 1}}));
}

TEST(Communicator, SteadyStateTakesNoMoreMemory) {
  World world(NodeMap({0, 1, 0, 1}), lossy_options());
  const auto one_step = [&] {
    for (const int64_t chunk : {1000, 10, 4000}) {
      world.reduce_scatter(random_inputs(4, chunk, DataType::kBFloat16), 1, true);
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

TEST(UnitKey, HashIsStableAndSeesEveryField) {
  const UnitKey key{"blocks.1", 1024, DataType::kBFloat16};
  EXPECT_EQ(key.hash(), UnitKey(key).hash());
  EXPECT_EQ(key.hash(), 0xeb6e8dffbf168616u) << "packets of another build would be refused";
  EXPECT_NE(key.hash(), (UnitKey{"blocks.2", 1024, DataType::kBFloat16}.hash()));
  EXPECT_NE(key.hash(), (UnitKey{"blocks.1", 1025, DataType::kBFloat16}.hash()));
  EXPECT_NE(key.hash(), (UnitKey{"blocks.1", 1024, DataType::kFloat32}.hash()));
}

// ---- tagc through the whole path

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
    add(world.reduce_scatter(inputs, 1, true), sent);
  }
  const std::vector<Array> zeros(static_cast<size_t>(map.world_size()), Array(chunk * map.world_size(), dtype));
  int drain_steps = 0;
  for (bool drained = false; !drained && drain_steps < 200; ++drain_steps) {
    const std::vector<double> late = world.reduce_scatter(zeros, 1, true);
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

TEST(CommunicatorTagc, WhatIsKeptBackIsSentLater) {
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
TEST(CommunicatorTagc, FlatAlsoSendsLaterWhatItKeptBack) {
  for (const int64_t index_bits : {1, 4}) {
    Options options = lossy_options();
    options.tiers = "flat";
    options.index_bits = index_bits;
    options.sparsity = 0.98;
    options.ratio = 1;
    options.block_elements = 64;
    expect_conservation(NodeMap::parse("2x1", 2), options, DataType::kFloat32, 16384);
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
  world.reduce_scatter(gradients, 1, true, "a");
  for (const double value : world.reduce_scatter(zeros, 1, true, "b")) {
    ASSERT_EQ(value, 0) << "unit b got what unit a kept back";
  }
  const std::vector<double> late = world.reduce_scatter(zeros, 1, true, "a");
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
  EXPECT_EQ(world.reduce_scatter(inputs, 1, true), sum_of(inputs));
}

TEST(CommunicatorTagc, PayloadIsThePacketSize) {
  constexpr int64_t kChunk = 4097;
  const Options options = lossy_options();
  const NodeMap map = NodeMap::parse("4x2", 8);
  World world(map, options);
  world.reduce_scatter(random_inputs(8, kChunk, DataType::kBFloat16), 1, true);
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
  world.reduce_scatter(random_inputs(4, kChunk, DataType::kBFloat16), 1, true);
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
    world.reduce_scatter(random_inputs(4, 256, DataType::kFloat32), 1, true);
    const CollectiveStats stats = world.ranks[1]->stats().collectives[0];
    EXPECT_EQ(stats.intra.sent_bytes, row.within_node) << row.tiers << ", " << row.codec;
    EXPECT_EQ(stats.inter.inter_node_sent_bytes + stats.flat.inter_node_sent_bytes, row.between_nodes)
        << row.tiers << ", " << row.codec;
  }
}

// ---- faults

// Passes everything on, but lets a test touch what arrived in all_to_all.
class TamperingTransport final : public Transport {
 public:
  TamperingTransport(std::shared_ptr<Transport> transport, std::function<void(Buffer)> tamper)
      : transport_(std::move(transport)), tamper_(std::move(tamper)) {}

  int rank() const override { return transport_->rank(); }
  int size() const override { return transport_->size(); }
  HandlePtr reduce_scatter(ConstBuffer in, Buffer out, Stream stream) override {
    return transport_->reduce_scatter(in, out, stream);
  }
  HandlePtr all_to_all(ConstBuffer in, Buffer out, Stream stream) override {
    HandlePtr handle = transport_->all_to_all(in, out, stream);
    tamper_(out);
    return handle;
  }
  HandlePtr all_gather(ConstBuffer in, Buffer out, Stream stream) override {
    return transport_->all_gather(in, out, stream);
  }
  HandlePtr all_reduce(Buffer data, ReduceOp op, Stream stream) override {
    return transport_->all_reduce(data, op, stream);
  }
  Traffic traffic() const override { return transport_->traffic(); }
  void abort() override { transport_->abort(); }

 private:
  std::shared_ptr<Transport> transport_;
  std::function<void(Buffer)> tamper_;
};

// Ranks that are not at the same step must not understand each other, and seeds must change from step to step.
TEST(Communicator, PacketsCarryTheStepOfTheirUnit) {
  std::vector<uint64_t> steps;  // in the packets that rank 1 got
  const auto wrap = [&](int rank, Tiers tiers) {
    if (rank == 1) {
      tiers.inter = std::make_shared<TamperingTransport>(tiers.inter, [&](Buffer arrived) {
        PacketHeader header;
        std::memcpy(&header, arrived.data, sizeof(header));
        steps.push_back(header.step);
      });
    }
    return tiers;
  };
  World world(NodeMap::parse("2x1", 2), lossy_options(), kTimeout, wrap);
  const std::vector<Array> gradients = random_inputs(2, 1000, DataType::kFloat32);
  for (const char* unit : {"a", "a", "b", "a", "b"}) {
    world.reduce_scatter(gradients, 1, true, unit);
  }
  world.reduce_scatter(gradients, 1, false, "a");
  world.reduce_scatter(gradients, 1, false, "a");
  world.reduce_scatter(gradients, 1, true, "a");
  EXPECT_EQ(steps, (std::vector<uint64_t>{0, 1, 0, 2, 1, 5, 6, 3}));
}

// Reduces until something fails, at most twice: who is done before a peer fails learns of it in the next call.
void reduce_twice(Communicator& communicator) {
  const int64_t elements = communicator.node_map().world_size() * 1000;
  const Array gradient(random_values(elements, 3), DataType::kFloat32);
  Array shard(1000, DataType::kFloat32);
  for (int step = 0; step < 2; ++step) {
    communicator.reduce_scatter(gradient.view(), shard.buffer(), 1, {"unit", elements, DataType::kFloat32}, true);
  }
}

class EveryCodec : public ::testing::TestWithParam<const char*> {
 protected:
  static Options options() {
    Options options = lossy_options();
    options.codec = GetParam();
    return options;
  }
};
INSTANTIATE_TEST_SUITE_P(Codecs, EveryCodec, ::testing::Values("none", "tagc"));

TEST_P(EveryCodec, ACorruptPacketIsAnErrorOnEveryRank) {
  constexpr int kVictim = 2;
  const auto wrap = [](int rank, Tiers tiers) {
    if (rank == kVictim) {
      // The packet from node 0 comes first; byte 16 is in its step.
      tiers.inter = std::make_shared<TamperingTransport>(
          tiers.inter, [](Buffer arrived) { arrived.as<std::byte>()[16] ^= std::byte{1}; });
    }
    return tiers;
  };
  World world(NodeMap::parse("2x2", 4), options(), kTimeout, wrap);
  const std::vector<Outcome> outcomes = run_ranks(4, [&](int rank) { reduce_twice(*world.ranks[rank]); });
  EXPECT_TRUE(outcomes[kVictim].threw<PacketError>());
  EXPECT_NE(outcomes[kVictim].text.find("packet with step 1 where 0 is expected"), std::string::npos)
      << outcomes[kVictim].text;
  EXPECT_STREQ(world.ranks[kVictim]->phase(), "decode");
  for (const int rank : {0, 1, 3}) {
    EXPECT_TRUE(outcomes[rank].threw<TransportError>()) << "rank " << rank << ": " << outcomes[rank].text;
  }
  EXPECT_THROW(reduce_twice(*world.ranks[kVictim]), TransportError) << "it stays aborted";
}

TEST_P(EveryCodec, AMissingRankIsNamedAndAllFail) {
  World world(NodeMap::parse("2x2", 4), options(), kShortTimeout);
  const std::vector<Outcome> outcomes = run_ranks(4, [&](int rank) {
    if (rank != 3) {
      reduce_twice(*world.ranks[rank]);
    }
  });
  for (const int rank : {0, 1, 2}) {
    EXPECT_TRUE(outcomes[rank].threw<TransportError>()) << "rank " << rank << ": " << outcomes[rank].text;
  }
  EXPECT_NE(outcomes[2].text.find("rank 3 did not come"), std::string::npos) << outcomes[2].text;
  EXPECT_STREQ(world.ranks[2]->phase(), "intra reduce-scatter");
}

TEST_P(EveryCodec, AbortReachesRanksThatWaitInAnyTier) {
  World world(NodeMap::parse("2x2", 4), options());
  const std::vector<Outcome> outcomes = run_ranks(4, [&](int rank) {
    if (rank == 3) {
      std::this_thread::sleep_for(milliseconds(20));  // let the others wait; correct without it, too
      world.ranks[3]->abort();
      return;
    }
    reduce_twice(*world.ranks[rank]);
  });
  for (const int rank : {0, 1, 2}) {
    EXPECT_TRUE(outcomes[rank].threw<TransportError>()) << "rank " << rank << ": " << outcomes[rank].text;
  }
  EXPECT_EQ(world.ranks[1]->stats().collectives[0].calls, 0);
}

TEST_P(EveryCodec, AbortFromAnotherThreadEndsTheOwnWait) {
  World world(NodeMap::parse("2x1", 2), options());
  const std::vector<Outcome> outcomes =
      run_ranks(2, [&](int rank) { rank == 0 ? reduce_twice(*world.ranks[0]) : world.ranks[0]->abort(); });
  EXPECT_TRUE(outcomes[0].threw<TransportError>()) << outcomes[0].text;
}

TEST_P(EveryCodec, RanksThatReduceDifferentUnitsAreTold) {
  World world(NodeMap::parse("2x1", 2), options());
  const std::vector<Outcome> outcomes = run_ranks(2, [&](int rank) {
    const Array gradient(2000, DataType::kFloat32);
    Array shard(1000, DataType::kFloat32);
    world.ranks[rank]->reduce_scatter(gradient.view(), shard.buffer(), 1,
                                      {rank == 0 ? "a" : "b", 2000, DataType::kFloat32}, true);
  });
  for (const Outcome& outcome : outcomes) {
    EXPECT_TRUE(outcome.threw<PacketError>()) << outcome.text;
    EXPECT_NE(outcome.text.find("packet with unit"), std::string::npos) << outcome.text;
  }
}

}  // namespace
}  // namespace isthmus
