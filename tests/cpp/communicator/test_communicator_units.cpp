// What the communicator does for each unit beside summing: own pieces, stages, residuals that leave, errors, and
// what it says where there is no memory.
#include <gtest/gtest.h>

#include <cmath>
#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "isthmus/communicator.h"
#include "isthmus/error.h"
#include "tests/cpp/support/world.h"

namespace isthmus::test {
namespace {

Options tagc_options(double sparsity) {
  Options options = lossy_options();
  options.sparsity = sparsity;
  options.ratio = 1;
  return options;
}

UnitStats only_unit(Communicator& communicator) {
  const Stats stats = communicator.stats();
  EXPECT_EQ(stats.units.size(), 1u);
  return stats.units.begin()->second;
}

void expect_near(const std::vector<double>& result, const std::vector<Array>& inputs) {
  const std::vector<double> sum = sum_of(inputs);
  const std::vector<double> magnitudes = sum_of_magnitudes(inputs);
  for (size_t i = 0; i < sum.size(); ++i) {
    ASSERT_NEAR(result[i], sum[i], 8 * unit_roundoff(kFloat32) * magnitudes[i]) << "element " << i;
  }
}

TEST(CommunicatorUnits, ADenseStartIsExactAndCounted) {
  const NodeMap map = NodeMap::parse("2x2", 4);
  Options options = tagc_options(.9);
  options.dense_steps = 2;
  for (const TierMode tiers : {TierMode::kTwo, TierMode::kFlat}) {
    options.tiers = tiers;
    World world(map, options);
    for (int step = 0; step < 3; ++step) {
      const std::vector<Array> inputs = random_inputs(4, 500, kFloat32, 4 + step);
      const std::vector<double> result = world.reduce_scatter(inputs, 1, {});
      if (step < 2) {
        expect_near(result, inputs);
      } else {
        EXPECT_GT(std::count(result.begin(), result.end(), 0.0) + world.ranks[0]->stats().codec.held_back_elements, 0);
      }
    }
    const Stats stats = world.ranks[0]->stats();
    EXPECT_EQ(stats.exact_calls.at(Reason::kDenseStart), 2);
    EXPECT_EQ(stats.compressed_calls, 1);
    EXPECT_EQ(world.ranks[0]->units().states()[0].step, 3u);
  }
}

// What keeps residuals that hold all that was not sent.
std::vector<Options> options_with_residuals() {
  std::vector<Options> all = {tagc_options(.9)};
  for (const Options& options : every_lossy_options()) {
    if (options.codec != "tagc" && make_codec(options.codec, options, kFloat32, 1)->keeps_residual()) {
      all.push_back(options);
    }
  }
  EXPECT_EQ(all.size(), 2u) << "tagc, and the default codec with error feedback";
  return all;
}

// A state with residuals is loaded where the codec keeps none: they are sent along, once.
void expect_residual_goes_along(const Options& options, Collective collective) {
  const NodeMap map = NodeMap::parse("2x2", 4);
  const std::vector<Array> inputs = random_inputs(4, 300, kFloat32, 7);
  World before(map, options);
  Options exact = exact_options();
  exact.min_elements = 0;
  World after(map, exact);
  const auto reduce = [&](World& world, const std::vector<Array>& gradients) {
    return collective == Collective::kAllReduce ? world.all_reduce(gradients, 1, {})[0].values()
                                                : world.reduce_scatter(gradients, 1, {});
  };
  std::vector<double> sent = reduce(before, inputs);
  for (int rank = 0; rank < 4; ++rank) {
    after.ranks[rank]->load(before.ranks[rank]->units().states()[0]);
  }
  const std::vector<Array> zeros(4, Array(inputs[0].view().num_elements, kFloat32));
  const std::vector<double> late = reduce(after, zeros);
  for (size_t i = 0; i < sent.size(); ++i) {
    sent[i] += late[i];
  }
  expect_near(sent, inputs);
  const Stats stats = after.ranks[0]->stats();
  EXPECT_EQ(stats.exact_calls.at(Reason::kTakesResidual), 1);
  EXPECT_EQ(stats.residual_bytes, 0);
  const std::vector<double> then = reduce(after, zeros);
  EXPECT_EQ(std::count(then.begin(), then.end(), 0.0), static_cast<int64_t>(then.size()));
  EXPECT_EQ(after.ranks[0]->stats().exact_calls.at(Reason::kCodecNone), 1);
}
TEST(CommunicatorUnits, AResidualGoesAlongWhenItsUnitLeavesTheCodec) {
  for (const Options& options : options_with_residuals()) {
    SCOPED_TRACE(options.codec);
    expect_residual_goes_along(options, Collective::kReduceScatter);
    expect_residual_goes_along(options, Collective::kAllReduce);
  }
}

void expect_errors_are_what_residuals_hold(Options options) {
  options.error_interval = 2;
  options.segments = 2;
  World world(NodeMap::parse("2x1", 2), options);
  std::vector<double> residual(5000);
  // One more step of rank 0's piece for the other node: squares of what is given, and of what its residual then holds.
  const auto squares_of_step = [&](uint64_t seed) {
    const std::vector<Array> inputs = random_inputs(2, 5000, kFloat32, seed);
    world.reduce_scatter(inputs, 1, {});
    const std::vector<float> left = world.ranks[0]->units().states()[0].residual;
    const std::vector<double> gradient = inputs[0].values();
    std::pair<double, double> squares;
    for (size_t i = 0; i < residual.size(); ++i) {
      squares.first += std::pow(residual[i] + gradient[5000 + i], 2);
      residual[i] = left[i];
      squares.second += residual[i] * residual[i];
    }
    return squares;
  };
  double given = 0;
  double dropped = 0;
  for (int step = 0; step < 4; ++step) {
    const auto [given_now, dropped_now] = squares_of_step(20 + step);
    given += step % 2 == 0 ? given_now : 0;
    dropped += step % 2 == 0 ? dropped_now : 0;
  }
  const UnitStats unit = only_unit(*world.ranks[0]);
  EXPECT_NEAR(unit.given_squares, given, 1e-5 * given);
  EXPECT_NEAR(unit.dropped_squares, dropped, 1e-5 * dropped);
  EXPECT_GT(dropped, .005 * given);
  world.ranks[0]->reset_stats();
  EXPECT_TRUE(world.ranks[0]->stats().units.empty());
  const double given_again = squares_of_step(30).first;
  const UnitStats again = only_unit(*world.ranks[0]);
  EXPECT_EQ(again.calls, 1);
  EXPECT_NEAR(again.given_squares, given_again, 1e-5 * given_again);
}

TEST(CommunicatorUnits, ErrorsAreWhatTheResidualsHold) {
  for (const Options& options : options_with_residuals()) {
    SCOPED_TRACE(options.codec);
    expect_errors_are_what_residuals_hold(options);
  }
}

TEST(CommunicatorUnits, NothingIsMeasuredUnlessAsked) {
  Options options = tagc_options(.9);
  options.error_interval = 0;
  World world(NodeMap::parse("2x1", 2), options);
  world.reduce_scatter(random_inputs(2, 5000, kFloat32, 1), 1, {});
  EXPECT_EQ(only_unit(*world.ranks[0]).given_squares, 0);
}

TEST(CommunicatorUnits, StatisticsNameCodecSettingsAndBits) {
  World world(NodeMap::parse("2x1", 2), tagc_options(.9));
  world.reduce_scatter(random_inputs(2, 4096, kFloat32, 1), 1, {}, "blocks.0");
  const UnitStats unit = only_unit(*world.ranks[0]);
  EXPECT_EQ(unit.name, "blocks.0");
  EXPECT_EQ(unit.num_elements, 8192);
  EXPECT_EQ(unit.codec, "tagc");
  EXPECT_NE(unit.settings.find("sparsity=0.9"), std::string::npos) << unit.settings;
  EXPECT_EQ(unit.reason, std::nullopt);
  EXPECT_EQ(unit.coded_elements, 4096);
  EXPECT_EQ(unit.packet_bytes, world.ranks[0]->stats().collectives[0].inter.sent_bytes);
  World plain(NodeMap::parse("2x1", 2), exact_options());
  plain.reduce_scatter(random_inputs(2, 4096, kFloat32, 1), 1, {}, "blocks.0");
  EXPECT_EQ(only_unit(*plain.ranks[0]).codec, "none");
  EXPECT_EQ(only_unit(*plain.ranks[0]).reason, Reason::kCodecNone);
}

TEST(CommunicatorUnits, ASingleTierIsForTagc) {
  Options options = flat_options();
  options.codec = "quant";
  EXPECT_THROW(World(NodeMap::parse("2x1", 2), options), OptionError);
}

// More than any address space holds; nothing of the gradient is read before its residual is there.
TEST(UnitMemory, AResidualWithoutMemoryIsNamedAndAllRanksFail) {
  constexpr int64_t kElements = int64_t{1} << 56;
  for (const Collective collective : {Collective::kReduceScatter, Collective::kAllReduce}) {
    World world(NodeMap::parse("2x2", 4), lossy_options());
    const std::vector<Outcome> outcomes = run_ranks(4, [&](int rank) {
      const UnitKey key{"embedding", kElements, kFloat32, collective};
      float nothing = 0;
      const Buffer gradient{&nothing, kElements, kFloat32};
      if (collective == Collective::kAllReduce) {
        world.ranks[rank]->all_reduce(gradient, {key});
      } else {
        world.ranks[rank]->reduce_scatter(gradient, gradient.part(0, kElements / 4), {key});
      }
    });
    for (int rank = 0; rank < 4; ++rank) {
      EXPECT_TRUE(outcomes[rank].threw<Error>());
      EXPECT_EQ(outcomes[rank].text, "unit \"embedding\": no memory for a residual of 72057594037927936 bytes");
      EXPECT_STREQ(to_string(world.ranks[rank]->phase()), "plan");
      EXPECT_EQ(world.ranks[rank]->stats().residual_bytes, 0);
    }
  }
}

// One rank alone has no memory: the others must not wait for it.
TEST(UnitMemory, OneRankWithoutMemoryFailsTheOthers) {
  World world(NodeMap::parse("2x2", 4), lossy_options());
  const std::vector<Outcome> outcomes = run_ranks(4, [&](int rank) {
    const int64_t elements = rank == 2 ? int64_t{1} << 56 : 4000;
    std::vector<float> values(4000);
    world.ranks[rank]->all_reduce({values.data(), elements, kFloat32},
                                  {{"u", elements, kFloat32, Collective::kAllReduce}});
  });
  EXPECT_TRUE(outcomes[2].threw<Error>()) << outcomes[2].text;
  for (const int rank : {0, 1, 3}) {
    EXPECT_TRUE(outcomes[rank].threw<TransportError>()) << outcomes[rank].text;
  }
}

TEST(UnitMemory, BuffersWithoutMemoryAreNamed) {
  World world(NodeMap::parse("2x2", 4), exact_options());
  const std::vector<Outcome> outcomes = run_ranks(4, [&](int rank) {
    constexpr int64_t kElements = int64_t{1} << 56;
    float nothing = 0;
    world.ranks[rank]->reduce_scatter({&nothing, kElements, kFloat32}, {&nothing, kElements / 4, kFloat32},
                                      {{"u", kElements, kFloat32}});
  });
  for (const Outcome& outcome : outcomes) {
    EXPECT_TRUE(outcome.threw<Error>());
    EXPECT_EQ(outcome.text, "no memory for phase \"intra reduce-scatter\" of reduce_scatter");
  }
}

}  // namespace
}  // namespace isthmus::test
