// Steps that may be undone: what is left of them, and how units count.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <numeric>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "isthmus/communicator.h"
#include "tests/cpp/support/world.h"

namespace isthmus::test {
namespace {

// A copy of a unit's state on one rank.
struct State {
  std::string name;
  double scale;
  std::vector<float> residual;
  std::vector<float> result_residual;
};
using States = std::vector<State>;

std::vector<States> states_of(const World& world) {
  std::vector<States> by_rank(static_cast<size_t>(world.size()));
  for (int rank = 0; rank < world.size(); ++rank) {
    for (const UnitState& unit : world.ranks[rank]->units().states()) {
      by_rank[rank].push_back({unit.key.name, unit.scale, unit.residual, unit.result_residual});
    }
  }
  return by_rank;
}

// A step that is undone leaves the residuals, the scale and the bits that a world without it has.
void expect_undone_leaves_no_trace(const Options& options) {
  const NodeMap map = NodeMap::parse("2x2", 4);
  World plain(map, options);
  World undone(map, options);
  const auto begin = [](World& world, uint64_t step) {
    world.on_units([&](UnitStates& units) { units.begin_step(step); });
  };
  const auto reduce = [](World& world, uint64_t seed, double scale) {
    return world.all_reduce(random_arrays(4, 4001, kFloat32, seed), scale, {});
  };
  begin(plain, 7);
  begin(undone, 7);
  reduce(plain, 1, 0.5);
  reduce(undone, 1, 0.5);
  const std::vector<States> before = states_of(undone);
  begin(undone, 8);
  reduce(undone, 2, 0.25);
  EXPECT_NE(states_of(undone)[0][0].residual, before[0][0].residual);
  undone.all_reduce(random_arrays(4, 4001, kFloat32, 3), 1, {}, "new");
  undone.on_units([](UnitStates& units) { units.undo_step(); });
  const std::vector<States> after = states_of(undone);
  for (int rank = 0; rank < 4; ++rank) {
    ASSERT_EQ(after[rank].size(), 2u);
    const State& fresh = after[rank][0];
    EXPECT_EQ(fresh.name, "new");
    EXPECT_TRUE(fresh.residual.empty() && fresh.result_residual.empty());
    EXPECT_EQ(fresh.scale, 0);
    EXPECT_EQ(after[rank][1].residual, before[rank][0].residual);
    EXPECT_EQ(after[rank][1].result_residual, before[rank][0].result_residual);
    EXPECT_FALSE(before[rank][0].result_residual.empty());
    EXPECT_EQ(after[rank][1].scale, 0.5);
  }
  EXPECT_EQ(undone.ranks[0]->stats().residual_bytes, plain.ranks[0]->stats().residual_bytes);
  begin(plain, 8);
  begin(undone, 8);
  const std::vector<Array> expected = reduce(plain, 4, 0.125);
  const std::vector<Array> result = reduce(undone, 4, 0.125);
  for (int rank = 0; rank < 4; ++rank) {
    EXPECT_TRUE(result[rank].bytes() == expected[rank].bytes()) << "rank " << rank;
  }
}

TEST(UndoneSteps, AStepThatIsUndoneLeavesNoTrace) {
  expect_undone_leaves_no_trace(lossy_options());
  Options quant = options_of_codec("quant");
  quant.error_feedback = ErrorFeedback::kOn;
  expect_undone_leaves_no_trace(quant);
}

// Without numbers of steps: seeds are taken back, too. A second undoing changes nothing.
TEST(UndoneSteps, AStepThatIsSkippedLeavesNoTrace) {
  for (const Options& options : every_lossy_options()) {
    SCOPED_TRACE(options.to_string());
    const NodeMap map = NodeMap::parse("2x2", 4);
    World plain(map, options);
    World skipping(map, options);
    const auto reduce = [](World& world, uint64_t seed) {
      std::vector<Array> results = world.all_reduce(random_arrays(4, 4001, kFloat32, seed), 1, {});
      results.emplace_back(world.reduce_scatter(random_arrays(4, 4000, kFloat32, seed), 1, {}), kFloat32);
      return results;
    };
    reduce(plain, 1);
    reduce(skipping, 1);
    skipping.on_units([](UnitStates& units) { units.begin_step(std::nullopt); });
    for (const uint64_t skipped : {10, 11}) {
      reduce(skipping, skipped);
      reduce(skipping, skipped);
      skipping.on_units([](UnitStates& units) { EXPECT_EQ(units.skip_step(), 0); });
    }
    EXPECT_EQ(skipping.ranks[0]->stats().skipped_steps, 2);
    const std::vector<Array> expected = reduce(plain, 2);
    const std::vector<Array> results = reduce(skipping, 2);
    for (size_t i = 0; i < results.size(); ++i) {
      EXPECT_TRUE(results[i].bytes() == expected[i].bytes()) << i;
    }
  }
}

TEST(UndoneSteps, AStepThatDidNotBeginLosesResiduals) {
  World world(NodeMap::parse("2x1", 2), lossy_options());
  world.all_reduce(random_arrays(2, 2000, kFloat32), 1, {});
  EXPECT_EQ(world.ranks[0]->units().skip_step(), 1);
  EXPECT_EQ(world.ranks[0]->stats().residual_bytes, 0);
  EXPECT_EQ(world.ranks[0]->units().skip_step(), 0) << "nothing is left to be lost";
}

TEST(UndoneSteps, OnlyTheseUnitsAreUndone) {
  World world(NodeMap::parse("2x1", 2), lossy_options());
  const auto reduce = [&](uint64_t seed) {
    for (const char* name : {"stays", "undone"}) {
      world.all_reduce(random_arrays(2, 2000, kFloat32, seed), 1, {}, name);
    }
  };
  const auto undone = [&](int rank) {
    const UnitPtr unit = world.ranks[rank]->held({"undone", 2000, kFloat32, Collective::kAllReduce});
    return std::set<const Unit*>{unit.get()};
  };
  reduce(1);
  for (const int rank : {0, 1}) {
    world.ranks[rank]->units().begin_step(std::nullopt, undone(rank));
  }
  const States before = states_of(world)[0];
  reduce(2);
  const States done = states_of(world)[0];
  world.ranks[0]->units().undo_step(undone(0));
  const States after = states_of(world)[0];
  ASSERT_EQ(after.size(), 2u);
  EXPECT_EQ(after[0].residual, done[0].residual) << after[0].name;
  EXPECT_EQ(after[1].residual, before[1].residual) << after[1].name;
  EXPECT_NE(before[1].residual, done[1].residual);
}

// How much larger a world's sum is than the exact one.
double growth(World& world, uint64_t seed, double factor) {
  std::vector<Array> inputs = random_arrays(4, 4000, kFloat32, seed);
  for (Array& input : inputs) {
    convert_scaled(input.view(), factor, input.buffer());
  }
  const auto norm = [](const std::vector<double>& values) {
    return std::sqrt(std::inner_product(values.begin(), values.end(), values.begin(), 0.0));
  };
  const double exact = norm(sum_of(inputs));
  return std::max(norm(world.all_reduce(inputs, 1, {})[0].values()), norm(world.reduce_scatter(inputs, 1, {}))) / exact;
}

int64_t spikes(const World& world) {
  int64_t spikes = 0;
  for (const auto& communicator : world.ranks) {
    spikes += communicator->stats().codec.spikes;
  }
  return spikes;
}

// Nobody says that a step was thrown away. A second spike after the first is one, too.
TEST(Spikes, NothingOfThemComesInTheNextStep) {
  std::vector<Options> all = every_lossy_options_of_both_tiers();
  all.back().ratio = 2;
  for (const Options& options : all) {
    SCOPED_TRACE(options.to_string());
    World world(NodeMap::parse("2x2", 4), options);
    for (const uint64_t seed : {1, 2, 3}) {
      EXPECT_LT(growth(world, seed, 1), 2.5);
    }
    EXPECT_EQ(spikes(world), 0);
    for (const uint64_t seed : {4, 5}) {
      growth(world, seed, 1e6);
    }
    EXPECT_EQ(spikes(world) > 0, world.ranks[0]->stats().residual_bytes > 0);
    for (const uint64_t seed : {6, 7}) {
      EXPECT_LT(growth(world, seed, 1), 2.5);
    }
  }
}

// The largest number there is: its square, and so a later norm, would be Inf.
TEST(Spikes, OneElementIsEnough) {
  for (const Options& options : every_lossy_options()) {
    SCOPED_TRACE(options.to_string());
    World world(NodeMap::parse("2x2", 4), options);
    for (const uint64_t seed : {1, 2}) {
      growth(world, seed, 1);
    }
    std::vector<Array> inputs = random_arrays(4, 4000, kFloat32, 3);
    for (const int64_t element : {500, 1500, 2500, 3500}) {
      inputs[1].buffer().as<float>()[element] = 3e38F;
    }
    world.all_reduce(inputs, 1, {});
    world.reduce_scatter(inputs, 1, {});
    EXPECT_LT(growth(world, 4, 1), 2.5);
  }
}

// Gradients that grow, that fall, and that are nothing for a while are no spikes.
TEST(Spikes, OrdinaryStepsAreNone) {
  for (const Options& options : every_lossy_options()) {
    World world(NodeMap::parse("2x2", 4), options);
    uint64_t seed = 0;
    for (const double factor :
         {1e-6, 2e-5, 5e-4, 1e-2, 0.3, 1.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 1.0, 0.02, 1.0}) {
      growth(world, ++seed, factor);
      EXPECT_EQ(spikes(world), 0) << factor;
    }
  }
}

TEST(UndoneSteps, ARankWithoutUnitsCountsFromTheStepThatAllBegin) {
  World world(NodeMap::parse("2x1", 2), lossy_options());
  for (int i = 0; i < 3; ++i) {
    world.all_reduce(random_arrays(2, 2000, kFloat32), 1, {});
  }
  world.ranks[1]->let_go();
  world.on_units([](UnitStates& units) { units.begin_step(40); });
  expect_equal_bits(world.all_reduce(random_arrays(2, 2000, kFloat32), 1, {}));
  world.on_units([](UnitStates& units) { EXPECT_EQ(units.states().at(0).step, 41u); });
}

TEST(UndoneSteps, TheDenseStartCountsTheLowBitsOfTheStep) {
  Options options = lossy_options();
  options.dense_steps = 2;
  World world(NodeMap::parse("2x1", 2), options);
  constexpr uint64_t kQuorum = uint64_t{3} << UnitStates::kStepBits;
  for (const uint64_t step : {kQuorum + 1, kQuorum + 2}) {
    world.on_units([&](UnitStates& units) { units.begin_step(step); });
    world.all_reduce(random_arrays(2, 2000, kFloat32), 1, {});
  }
  EXPECT_EQ(world.ranks[0]->stats().exact_calls.at(Reason::kDenseStart), 1);
  EXPECT_EQ(world.ranks[0]->stats().compressed_calls, 1);
}

}  // namespace
}  // namespace isthmus::test
