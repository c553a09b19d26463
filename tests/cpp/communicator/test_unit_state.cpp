// What a communicator keeps of units between collectives: saved, loaded, scaled, counted.
#include <gtest/gtest.h>

#include <cstring>
#include <limits>
#include <string>
#include <vector>

#include "isthmus/communicator.h"
#include "isthmus/error.h"
#include "tests/cpp/support/error_of.h"
#include "tests/cpp/support/world.h"

namespace isthmus::test {
namespace {

constexpr double kNan = std::numeric_limits<double>::quiet_NaN();
constexpr double kInfinity = std::numeric_limits<double>::infinity();

using Checkpoint = std::vector<std::vector<UnitState>>;  // by rank

Checkpoint save(const World& world) {
  Checkpoint checkpoint(static_cast<size_t>(world.size()));
  for (int rank = 0; rank < world.size(); ++rank) {
    checkpoint[rank] = world.ranks[rank]->units().states();
  }
  return checkpoint;
}

void load(const Checkpoint& checkpoint, World& world) {
  for (int rank = 0; rank < world.size(); ++rank) {
    for (const UnitState& saved : checkpoint[rank]) {
      world.ranks[rank]->load(saved);
    }
  }
}

// Two units of each collective; everything that all ranks got, in bits.
Bytes train_one_step(World& world, int step) {
  Bytes bits;
  const auto add = [&](const Array& more) { bits.insert(bits.end(), more.bytes().begin(), more.bytes().end()); };
  for (const char* unit : {"a", "b"}) {
    const uint64_t seed = 10 * static_cast<uint64_t>(step) + static_cast<uint64_t>(unit[0]);
    const std::vector<Array> inputs = random_arrays(world.size(), 4001, DataType::kBFloat16, seed);
    for (const Array& result : world.all_reduce(inputs, 0.25, {}, unit)) {
      add(result);
    }
    const std::vector<Array> gradients = random_arrays(world.size(), 1000 * world.size(), kFloat32, seed);
    add({world.reduce_scatter(gradients, 0.25, {}, unit), DataType::kFloat64});
  }
  return bits;
}

TEST(UnitState, AResumedRunHasTheBitsOfTheUninterrupted) {
  for (const Options& options : every_lossy_options_of_both_tiers()) {
    for (const NodeMap& map : {NodeMap::parse("2x2", 4), NodeMap::parse("3x1", 3), NodeMap({0, 1, 0, 1})}) {
      World uninterrupted(map, options);
      for (int step = 0; step < 3; ++step) {
        train_one_step(uninterrupted, step);
      }
      World resumed(map, options);
      load(save(uninterrupted), resumed);
      World forgetful(map, options);
      bool state_matters = false;  // of quant: the step, from which rotations are drawn
      for (int step = 3; step < 6; ++step) {
        const Bytes expected = train_one_step(uninterrupted, step);
        EXPECT_TRUE(train_one_step(resumed, step) == expected)
            << options.to_string() << ", " << map.to_string() << ", step " << step;
        state_matters = train_one_step(forgetful, step) != expected || state_matters;
      }
      EXPECT_TRUE(state_matters) << options.codec;
      EXPECT_EQ(resumed.ranks[0]->stats().residual_bytes, uninterrupted.ranks[0]->stats().residual_bytes);
      EXPECT_EQ(resumed.ranks[0]->stats().num_units, uninterrupted.ranks[0]->stats().num_units);
    }
  }
}

TEST(UnitState, HoldsWhatTheContractSays) {
  World world(NodeMap::parse("3x2", 6), lossy_options());
  EXPECT_TRUE(world.ranks[0]->units().states().empty());
  world.all_reduce(random_arrays(6, 601, DataType::kFloat16), 0.5, {}, "b");
  world.reduce_scatter(random_arrays(6, 600, kFloat32), 0.25, {}, "b");
  world.reduce_scatter(random_arrays(6, 600, kFloat32), 0.25, {}, "a");
  world.reduce_scatter(random_arrays(6, 600, kFloat32), 0.125, {}, "a");
  world.reduce_scatter(random_arrays(6, 600, kFloat32), 1, Reason::kNotPrepared, "never compressed");
  for (const auto& communicator : world.ranks) {
    const std::vector<UnitState> states = communicator->units().states();
    ASSERT_EQ(states.size(), 3u);
    EXPECT_EQ(states[0].key, (UnitKey{"a", 600, kFloat32}));
    EXPECT_EQ(states[0].step, 2u);
    EXPECT_EQ(states[0].scale, 0.125);
    EXPECT_EQ(states[0].residual.size(), 2 * 100u);
    EXPECT_EQ(states[0].result_residual.size(), 0u);
    EXPECT_EQ(states[1].key, (UnitKey{"b", 600, kFloat32}));
    EXPECT_EQ(states[2].key, (UnitKey{"b", 601, DataType::kFloat16, Collective::kAllReduce}));
    EXPECT_EQ(states[2].step, 1u);
    EXPECT_EQ(states[2].scale, 0.5);
    EXPECT_EQ(states[2].residual.size(), 2 * 101u);
    EXPECT_EQ(states[2].result_residual.size(), 101u);
    EXPECT_EQ(communicator->stats().residual_bytes, (200 + 200 + 202 + 101) * 4);
    communicator->let_go();
    EXPECT_TRUE(communicator->units().states().empty());
    EXPECT_EQ(communicator->stats().residual_bytes, 0);
    EXPECT_EQ(communicator->stats().num_units, 0);
  }
  world.reduce_scatter(random_arrays(6, 600, kFloat32), 1, {}, "a");
  EXPECT_EQ(world.ranks[5]->units().states().at(0).step, 1u) << "it starts anew";
}

TEST(UnitState, LayoutsAreUnitsOfTheirOwn) {
  World world(NodeMap::parse("2x1", 2), lossy_options());
  for (const uint64_t layout : {1, 2, 1}) {
    world.all_reduce(std::vector(2, Array(500, kFloat32)), {{"u", 500, kFloat32, Collective::kAllReduce, layout}});
  }
  const std::vector<UnitState> states = world.ranks[0]->units().states();
  ASSERT_EQ(states.size(), 2u);
  EXPECT_EQ(states[0].step, 2u);
  EXPECT_EQ(states[1].step, 1u);
}

std::string error_of(KeyedCommunicator& communicator, const UnitState& state) {
  return test::error_of([&] { communicator.load(state); });
}

// More elements than any machine has.
TEST(UnitState, NumbersAreComparedBeforeAnythingIsAllocated) {
  World world(NodeMap::parse("2x2", 4), lossy_options());
  const std::vector<float> residual(100, 1);
  constexpr int64_t kMost = int64_t{1} << 56;
  EXPECT_EQ(error_of(*world.ranks[0], {{"u", kMost, kFloat32, Collective::kAllReduce}, 1, 1, residual, {}}),
            "unit \"u\": cannot load a residual of 100 elements where this group has 18014398509481984");
  EXPECT_NE(error_of(*world.ranks[0], {{"u", 4 * kMost, kFloat32, Collective::kAllReduce}, 1, 1, {}, {}}), "");
  EXPECT_EQ(world.ranks[0]->stats().num_units, 0);
}

TEST(UnitState, StatesThatDoNotFitAreNamedAndChangeNothing) {
  World world(NodeMap::parse("2x2", 4), lossy_options());
  world.all_reduce(random_arrays(4, 400, kFloat32), 1, {}, "u");
  const Checkpoint before = save(world);
  KeyedCommunicator& communicator = *world.ranks[0];
  const auto ones = [](size_t elements) { return std::vector<float>(elements, 1); };
  const UnitKey key{"u", 400, kFloat32, Collective::kAllReduce};

  EXPECT_EQ(error_of(communicator, {key, 1, 1, ones(99), {}}),
            "unit \"u\": cannot load a residual of 99 elements where this group has 100");
  EXPECT_EQ(error_of(communicator, {key, 1, 1, ones(101), {}}),
            "unit \"u\": cannot load a residual of 101 elements where this group has 100");
  EXPECT_EQ(error_of(communicator, {key, 1, 1, ones(100), ones(400)}),
            "unit \"u\": cannot load a result residual of 400 elements where this group has 100");
  EXPECT_EQ(error_of(communicator, {key, 1, kNan, {}, {}}), "unit \"u\": cannot load the scale nan");
  EXPECT_EQ(error_of(communicator, {{"u", 401, kFloat32}, 1, 1, {}, {}}),
            "unit \"u\": cannot load the state of a reduce_scatter of 401 elements of float32 over 4 ranks");
  EXPECT_NE(error_of(communicator, {{"u", 400, kFloat32, Collective::kAllGather}, 1, 1, {}, {}}), "");
  EXPECT_NE(error_of(communicator, {{"u", 400, DataType::kFloat64}, 1, 1, {}, {}}), "");
  EXPECT_NE(error_of(communicator, {{"u", 400, DataType::kByte}, 1, 1, {}, {}}), "");
  EXPECT_NE(error_of(communicator, {{"u", 0, kFloat32}, 1, 1, {}, {}}), "");
  EXPECT_NE(error_of(communicator, {{"u", -4, kFloat32}, 1, 1, {}, {}}), "");
  EXPECT_NE(test::error_of([] { Sections({{0, 1}, {1, std::numeric_limits<int64_t>::max()}}); }), "");
  std::vector<float> infinite = ones(100);
  infinite[50] = std::numeric_limits<float>::infinity();
  EXPECT_EQ(error_of(communicator, {key, 1, 1, {}, infinite}),
            "unit \"u\": cannot load a result residual that holds NaN or Inf");

  const Checkpoint after = save(world);
  EXPECT_EQ(after[0][0].residual, before[0][0].residual);
  EXPECT_EQ(after[0][0].result_residual, before[0][0].result_residual);
  EXPECT_EQ(after[0].size(), 1u);
  EXPECT_EQ(communicator.stats().residual_bytes, 200 * 4);
}

// Zeros take no memory before a codec wants them.
TEST(UnitState, EmptyResidualsAreZeros) {
  World world(NodeMap::parse("2x2", 4), lossy_options());
  world.all_reduce(random_arrays(4, 400, kFloat32), 1, {}, "u");
  KeyedCommunicator& communicator = *world.ranks[1];
  communicator.load({{"u", 400, kFloat32, Collective::kAllReduce}, 7, 0.5, {}, {}});
  const std::vector<UnitState> states = communicator.units().states();
  ASSERT_EQ(states.size(), 1u) << "it replaced what was there";
  EXPECT_EQ(states[0].step, 7u);
  EXPECT_EQ(states[0].scale, 0.5);
  EXPECT_EQ(states[0].residual.size(), 0u);
  EXPECT_EQ(states[0].result_residual.size(), 0u);
  EXPECT_EQ(communicator.stats().residual_bytes, 0);
}

// Where nothing crosses between nodes compressed, a state without residuals can be loaded, one with them cannot.
TEST(UnitState, GroupsThatHaveNoPlaceForResiduals) {
  const auto state = [](const UnitKey& key, size_t elements) {
    return UnitState{key, 1, 1, std::vector<float>(elements)};
  };
  const UnitKey key{"u", 400, kFloat32, Collective::kAllReduce};
  World one_node(NodeMap::parse("1x4", 4), lossy_options());
  EXPECT_NE(error_of(*one_node.ranks[0], state(key, 100)), "");
  EXPECT_EQ(error_of(*one_node.ranks[0], state(key, 0)), "");
  Options options = flat_options();
  World flat(NodeMap::parse("2x2", 4), options);
  EXPECT_NE(error_of(*flat.ranks[0], state(key, 100)), "") << "all-reduces are exact there";
  EXPECT_EQ(error_of(*flat.ranks[0], state({"u", 400, kFloat32}, 400)), "");
}

// In which an owner's residual shows: rank 1 keeps back what rank 0 owns.
struct TwoRanks {
  World world{NodeMap::parse("2x1", 2), lossy_options()};
  std::vector<Array> zeros{2, Array(2000, kFloat32)};

  TwoRanks() { world.reduce_scatter(random_arrays(2, 2000, kFloat32), 0.5, {}); }
  std::vector<float> residual() const { return world.ranks[1]->units().states().at(0).residual; }
  double scale() const { return world.ranks[1]->units().states().at(0).scale; }
};

TEST(UnitState, AnExactReductionTakesTheResidualAlongOnce) {
  TwoRanks ranks;
  const std::vector<float> before = ranks.residual();
  ranks.world.reduce_scatter(ranks.zeros, 0, {});
  ranks.world.reduce_scatter(ranks.zeros, kInfinity, {});
  EXPECT_EQ(ranks.residual(), before) << "no residual can follow such a scale";
  EXPECT_EQ(ranks.scale(), 0.5);
  const std::vector<double> sent = ranks.world.reduce_scatter(ranks.zeros, 0.125, Reason::kNotPrepared);
  for (size_t i = 0; i < before.size(); ++i) {
    ASSERT_EQ(sent[i], 0.5 * before[i]);
  }
  const std::vector<double> sent_again = ranks.world.reduce_scatter(ranks.zeros, 0.125, Reason::kNotPrepared);
  EXPECT_EQ(sent_again, std::vector<double>(2000));
  const Stats stats = ranks.world.ranks[1]->stats();
  EXPECT_EQ(stats.exact_calls.at(Reason::kTakesResidual), 1);
  EXPECT_EQ(stats.exact_calls.at(Reason::kNotPrepared), 1);
  EXPECT_EQ(stats.residual_bytes, 0);
}

// scale * residual is what counts, so a group of another size can take it over.
TEST(UnitState, ALoadedResidualFollowsTheScaleOfTheNextReduction) {
  World world(NodeMap::parse("2x1", 2), lossy_options());
  for (const auto& rank : world.ranks) {
    rank->load({{"unit", 2, kFloat32}, 5, 0.25, {1.F}, {}});
  }
  const std::vector<Array> zeros(2, Array(2, kFloat32));
  EXPECT_EQ(world.reduce_scatter(zeros, 0.5, {}), (std::vector<double>{0.25, 0.25}));
  EXPECT_EQ(world.ranks[0]->units().states().at(0).step, 6u);
}

TEST(UnitState, ScaleResidualsMultipliesBoth) {
  World world(NodeMap::parse("2x1", 2), lossy_options());
  world.all_reduce(random_arrays(2, 2000, kFloat32), 1, {}, "a");
  world.reduce_scatter(random_arrays(2, 2000, kFloat32), 1, {}, "b");
  const Checkpoint before = save(world);
  world.on_units([](UnitStates& units) { units.scale_residuals(0.5); });
  const Checkpoint after = save(world);
  const auto half = [](std::vector<float> values) {
    for (float& value : values) {
      value *= 0.5F;
    }
    return values;
  };
  for (int rank = 0; rank < 2; ++rank) {
    for (int unit = 0; unit < 2; ++unit) {
      EXPECT_EQ(after[rank][unit].residual, half(before[rank][unit].residual));
      EXPECT_EQ(after[rank][unit].result_residual, half(before[rank][unit].result_residual));
      EXPECT_EQ(after[rank][unit].scale, 1);
    }
  }
  EXPECT_NE(after[0][0].result_residual, before[0][0].result_residual);
  for (const double factor : {0.0, -1.0, kNan, kInfinity}) {
    EXPECT_THROW(world.ranks[0]->units().scale_residuals(factor), Error) << factor;
  }
  EXPECT_EQ(save(world)[0][0].residual, after[0][0].residual);
}

// Inf would stay in a residual for good.
TEST(UnitState, NoFactorMakesAResidualInfinite) {
  World world(NodeMap::parse("2x1", 2), lossy_options());
  constexpr float kLargest = std::numeric_limits<float>::max();
  const std::vector<float> large = {kLargest / 2, -kLargest / 2, 0};
  KeyedCommunicator& communicator = *world.ranks[0];
  communicator.load({{"u", 6, kFloat32}, 1, 1, large, {}});
  communicator.units().scale_residuals(8);
  EXPECT_EQ(communicator.units().states().at(0).residual, (std::vector<float>{kLargest, -kLargest, 0}));
}

}  // namespace
}  // namespace isthmus::test
