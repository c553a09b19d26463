// A communicator that chooses its units' codecs. Link speeds are given, and so slow that the speed of this machine does
// not matter; what is chosen over a fast link does depend on it, and is Chooser's tests'.
#include <gtest/gtest.h>

#include <array>
#include <atomic>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "auto/chooser.h"
#include "isthmus/error.h"
#include "tests/cpp/support/hooked_transport.h"
#include "tests/cpp/support/world.h"

namespace isthmus::test {
namespace {

constexpr int64_t kChunk = 6000;

constexpr double kSlowLink = 1e-4;  // Gbit/s: any compression pays
constexpr std::array<const char*, 3> kMaps = {"2x2", "2x1", "0,3|1,2"};

NodeMap map_of(const std::string& nodes) { return NodeMap::parse(nodes, nodes == "2x1" ? 2 : 4); }

Options auto_options(double inter_gbit, double budget) {
  Options options;
  options.codec = "auto";
  options.min_elements = 0;
  options.error_budget = budget;
  options.inter_gbit = inter_gbit;
  options.intra_gbit = 1000;
  return options;
}

// The same on all ranks.
UnitStats stats_of_unit(World& world, const std::string& name = "unit") {
  std::vector<UnitStats> found;
  for (const auto& rank : world.ranks) {
    for (const auto& [hash, unit] : rank->stats().units) {
      if (unit.name == name) {
        found.push_back(unit);
      }
    }
  }
  EXPECT_EQ(static_cast<int>(found.size()), world.size());
  for (const UnitStats& unit : found) {
    EXPECT_EQ(unit.codec, found[0].codec);
    EXPECT_EQ(unit.settings, found[0].settings);
    EXPECT_EQ(unit.reason, found[0].reason);
  }
  return found.empty() ? UnitStats() : found[0];
}

TEST(CommunicatorAuto, CompressesOverASlowLink) {
  for (const char* nodes : kMaps) {
    const NodeMap map = map_of(nodes);
    World world(map, auto_options(kSlowLink, 1));
    world.reduce_scatter(random_inputs(map.world_size(), kChunk, DataType::kFloat32), 1, nullptr);
    EXPECT_NE(stats_of_unit(world).codec, "none") << stats_of_unit(world).reason;
    EXPECT_EQ(world.ranks[0]->stats().compressed_calls, 1);
  }
}

TEST(CommunicatorAuto, ABudgetThatNothingMeetsIsExactAndSaysSo) {
  for (const char* nodes : kMaps) {
    const NodeMap map = map_of(nodes);
    const auto inputs = random_inputs(map.world_size(), kChunk, DataType::kFloat32);
    World world(map, auto_options(kSlowLink, 1e-9));
    const std::vector<double> sum = world.reduce_scatter(inputs, 1, nullptr);
    const UnitStats unit = stats_of_unit(world);
    EXPECT_EQ(unit.codec, "none");
    EXPECT_NE(unit.reason.find("no codec"), std::string::npos) << unit.reason;
    EXPECT_EQ(world.ranks[0]->stats().exact_calls.at("chosen to be exact"), 1);
    const std::vector<double> expected = sum_of(inputs);
    const std::vector<double> magnitudes = sum_of_magnitudes(inputs);
    for (size_t i = 0; i < sum.size(); ++i) {
      ASSERT_NEAR(sum[i], expected[i], exact_path_bound(map, DataType::kFloat32, 1, expected[i], magnitudes[i]));
    }
  }
}

TEST(CommunicatorAuto, AllReduceIsChosenForItself) {
  World world(NodeMap::parse("2x2", 4), auto_options(kSlowLink, 1));
  const auto results = world.all_reduce(random_arrays(4, 4 * kChunk + 3, DataType::kFloat32), .25, nullptr);
  EXPECT_NE(stats_of_unit(world).codec, "none");
  for (const Array& result : results) {
    EXPECT_EQ(result.bytes(), results[0].bytes());
  }
}

// What is exact anyway asks for no measurements.
TEST(CommunicatorAuto, MeasuresOnceAndOnlyForCandidates) {
  std::atomic<int> operations = 0;
  const auto counted = [&operations](const std::shared_ptr<Transport>& tier) {
    return std::make_shared<HookedTransport>(
        tier, [&operations](const std::string&, ConstBuffer) { ++operations; }, HookedTransport::After());
  };
  Options options = auto_options(0, 1);
  options.intra_gbit = 0;
  options.min_elements = 4 * kChunk;
  World world(NodeMap::parse("2x2", 4), options, kTimeout, [&](int /*rank*/, Tiers tiers) {
    tiers.intra = counted(tiers.intra);
    tiers.inter = counted(tiers.inter);
    return tiers;
  });
  const auto operations_of = [&](int64_t chunk, const char* why_exact, const std::string& unit) {
    const int before = operations;
    world.reduce_scatter(random_inputs(4, chunk, DataType::kFloat32), 1, why_exact, unit);
    return operations - before;
  };
  const int plain = operations_of(kChunk - 1, nullptr, "small");
  EXPECT_EQ(operations_of(kChunk, "no gradient", "other"), plain);
  EXPECT_EQ(plain, 4 * 3);  // two grouped sums within the node, and one exchange
  EXPECT_GT(operations_of(kChunk, nullptr, "first"), plain + 4 * 20);
  EXPECT_EQ(operations_of(kChunk, nullptr, "second"), plain);
}

TEST(CommunicatorAuto, SegmentsAndStagesWorkAsWithAFixedCodec) {
  Options options = auto_options(kSlowLink, 1);
  options.dense_steps = 1;
  options.segments = 2;
  World world(NodeMap::parse("2x2", 4), options);
  const auto inputs = random_inputs(4, 2 * kChunk, DataType::kFloat32);
  world.reduce_scatter(inputs, 1, nullptr);
  EXPECT_EQ(stats_of_unit(world).reason, "dense start");
  world.reduce_scatter(inputs, 1, nullptr);
  EXPECT_NE(stats_of_unit(world).codec, "none");
}

// One value in 512 is so large that the others, of a third of all squares, fall on level zero.
std::vector<Array> spiky_inputs(int world_size) {
  std::vector<Array> arrays;
  for (int rank = 0; rank < world_size; ++rank) {
    std::vector<double> values = random_values(world_size * kChunk, 7 + rank);
    for (size_t i = 0; i < values.size(); i += 512) {
      values[i] = 30;
    }
    arrays.emplace_back(values, DataType::kFloat32);
  }
  return arrays;
}

Options plain_quant_options(double budget) {
  Options options = auto_options(kSlowLink, budget);
  options.codec = "quant";
  options.bits = 0;
  options.group_elements = 512;
  options.rotate = false;
  options.scale = "absmax";
  options.error_interval = 2;
  return options;
}

TEST(CommunicatorAuto, AMeasuredErrorAboveTheBudgetChangesTheChoiceOnAllRanksAtOnce) {
  Options options = plain_quant_options(.7);  // one bit is expected to keep to it
  options.codec = "auto";
  options.sparsity = .99;
  World world(NodeMap::parse("2x2", 4), options);
  const auto inputs = random_inputs(4, kChunk, DataType::kFloat32);
  world.reduce_scatter(inputs, 1, nullptr);
  const UnitStats first = stats_of_unit(world);
  EXPECT_EQ(first.codec, "quant") << first.reason;
  EXPECT_NE(first.reason.find("expected error"), std::string::npos) << first.reason;
  world.reduce_scatter(inputs, 1, nullptr);
  const UnitStats second = stats_of_unit(world);
  EXPECT_NE(second.settings, first.settings) << second.reason;
}

TEST(CommunicatorAuto, QuantTakesTheFewestBitsOfItsBudget) {
  for (const auto& [budget, bits] :
       std::vector<std::pair<double, int>>{{.4, 1}, {.12, 2}, {.04, 3}, {0, 4}, {1e-4, 8}}) {
    Options options = plain_quant_options(budget);
    options.rotate = true;
    options.scale = "least_error";
    World world(NodeMap::parse("2x2", 4), options);
    for (int step = 0; step < 4; ++step) {  // what is measured of normal values is what was expected
      world.reduce_scatter(random_inputs(4, kChunk, DataType::kFloat32, step), 1, nullptr);
      const UnitStats unit = stats_of_unit(world);
      EXPECT_NE(unit.settings.find(" bits=" + std::to_string(bits) + " "), std::string::npos)
          << unit.settings << ": " << unit.reason;
    }
  }
}

TEST(CommunicatorAuto, QuantLeavesAWidthThatBreaksItsBudget) {
  World world(NodeMap::parse("2x2", 4), plain_quant_options(.02));
  world.reduce_scatter(spiky_inputs(4), 1, nullptr);
  EXPECT_NE(stats_of_unit(world).settings.find(" bits=4 "), std::string::npos);
  for (int step = 1; step < 6; ++step) {
    world.reduce_scatter(spiky_inputs(4), 1, nullptr);
  }
  const UnitStats unit = stats_of_unit(world);
  EXPECT_EQ(unit.settings.find(" bits=4 "), std::string::npos) << unit.reason;
}

TEST(CommunicatorAuto, ABudgetThatNoWidthMeetsIsExact) {
  World world(NodeMap::parse("2x2", 4), plain_quant_options(1e-9));
  world.reduce_scatter(random_inputs(4, kChunk, DataType::kFloat32), 1, nullptr);
  EXPECT_EQ(stats_of_unit(world).codec, "none");
  EXPECT_NE(stats_of_unit(world).reason.find("no width keeps to the error budget 1e-09"), std::string::npos);
}

// The rank that waited most counts.
TEST(CommunicatorAuto, TriesTheExactExchangeWhereACodecIsNotSeen) {
  const auto inputs = random_inputs(4, kChunk, DataType::kFloat32);
  Options options = auto_options(kSlowLink, 1);
  options.error_interval = 1;
  double exposed_share = 0;
  World world(NodeMap::parse("2x2", 4), options);
  for (int rank = 0; rank < 4; ++rank) {
    world.ranks[rank]->ask_for_exposure([&, rank](uint64_t) { return rank == 2 ? exposed_share : 0; });
  }
  const auto codec_after_a_step = [&](double share) {
    exposed_share = share;
    world.reduce_scatter(inputs, 1, nullptr);
    return stats_of_unit(world).codec;
  };
  EXPECT_NE(codec_after_a_step(0), "none") << "nothing is known yet";
  EXPECT_EQ(codec_after_a_step(0), "none") << stats_of_unit(world).reason;
  EXPECT_EQ(codec_after_a_step(0), "none") << "that is hidden, too";
  EXPECT_NE(codec_after_a_step(.9), "none") << "that was seen";
  EXPECT_NE(codec_after_a_step(0), "none") << "now it is known how much hides";
}

TEST(CommunicatorAuto, NeedsTwoTiers) {
  Options options = auto_options(0, 1);
  options.tiers = "flat";
  EXPECT_THROW(World(NodeMap::parse("2x2", 4), options), OptionError);
}

TEST(CommunicatorAuto, AFailingProbeFailsTheCall) {
  Options options = auto_options(0, 1);
  World world(NodeMap::parse("2x1", 2), options, kShortTimeout, [](int rank, Tiers tiers) {
    tiers.inter = std::make_shared<HookedTransport>(
        tiers.inter,
        [rank](const std::string&, ConstBuffer in) {
          if (rank == 1 && in.bytes() > 10000) {
            throw TransportError("cable pulled");
          }
        },
        HookedTransport::After());
    return tiers;
  });
  const auto outcomes = run_ranks(2, [&](int rank) {
    Array gradient(2 * kChunk, DataType::kFloat32);
    Array shard(kChunk, DataType::kFloat32);
    world.ranks[rank]->reduce_scatter(gradient.view(), shard.buffer(), 1, {"unit", 2 * kChunk, DataType::kFloat32},
                                      nullptr);
  });
  EXPECT_TRUE(outcomes[0].threw<TransportError>()) << outcomes[0].text;
  EXPECT_TRUE(outcomes[1].threw<TransportError>()) << outcomes[1].text;
  EXPECT_STREQ(world.ranks[0]->phase(), "probe of links");
}

}  // namespace
}  // namespace isthmus::test
