// Steps that may be undone: what is left of them, and how units count.
#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "isthmus/communicator.h"
#include "tests/cpp/support/world.h"

namespace isthmus {
namespace {

using test::Array;
using test::lossy_options;
using test::random_arrays;
using test::World;

constexpr DataType kFloat32 = DataType::kFloat32;

// A copy of a unit's state on one rank.
struct State {
  std::string name;
  double scale;
  std::vector<float> residual;
  std::vector<float> result_residual;
};
using States = std::vector<State>;

std::vector<float> copy(ConstBuffer buffer) { return {buffer.as<float>(), buffer.as<float>() + buffer.num_elements}; }

std::vector<States> states_of(const World& world) {
  std::vector<States> by_rank(static_cast<size_t>(world.size()));
  for (int rank = 0; rank < world.size(); ++rank) {
    for (const UnitState& unit : world.ranks[rank]->units().states()) {
      by_rank[rank].push_back({unit.key.name, unit.scale, copy(unit.residual), copy(unit.result_residual)});
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
    for (const auto& communicator : world.ranks) {
      communicator->units().begin_step(step);
    }
  };
  const auto reduce = [](World& world, uint64_t seed, double scale) {
    return world.all_reduce(random_arrays(4, 4001, kFloat32, seed), scale, nullptr);
  };
  begin(plain, 7);
  begin(undone, 7);
  reduce(plain, 1, 0.5);
  reduce(undone, 1, 0.5);
  const std::vector<States> before = states_of(undone);
  begin(undone, 8);
  reduce(undone, 2, 0.25);
  EXPECT_NE(states_of(undone)[0][0].residual, before[0][0].residual);
  undone.all_reduce(random_arrays(4, 4001, kFloat32, 3), 1, nullptr, "new");
  for (const auto& communicator : undone.ranks) {
    communicator->units().undo_step();
  }
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
  Options quant = test::options_of_codec("quant");
  quant.error_feedback = "on";
  expect_undone_leaves_no_trace(quant);
}

TEST(UndoneSteps, ARankWithoutUnitsCountsFromTheStepThatAllBegin) {
  World world(NodeMap::parse("2x1", 2), lossy_options());
  for (int i = 0; i < 3; ++i) {
    world.all_reduce(random_arrays(2, 2000, kFloat32), 1, nullptr);
  }
  world.ranks[1]->units().clear();
  for (const auto& communicator : world.ranks) {
    communicator->units().begin_step(40);
  }
  test::expect_equal_bits(world.all_reduce(random_arrays(2, 2000, kFloat32), 1, nullptr));
  for (const auto& communicator : world.ranks) {
    EXPECT_EQ(communicator->units().states().at(0).step, 41u);
  }
}

TEST(UndoneSteps, TheDenseStartCountsTheLowBitsOfTheStep) {
  Options options = lossy_options();
  options.dense_steps = 2;
  World world(NodeMap::parse("2x1", 2), options);
  constexpr uint64_t kQuorum = uint64_t{3} << UnitStates::kStepBits;
  for (const uint64_t step : {kQuorum + 1, kQuorum + 2}) {
    for (const auto& communicator : world.ranks) {
      communicator->units().begin_step(step);
    }
    world.all_reduce(random_arrays(2, 2000, kFloat32), 1, nullptr);
  }
  EXPECT_EQ(world.ranks[0]->stats().exact_calls.at("dense start"), 1);
  EXPECT_EQ(world.ranks[0]->stats().compressed_calls, 1);
}

}  // namespace
}  // namespace isthmus
