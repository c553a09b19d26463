// Codec auto on emulated GPUs: it measures on streams, and what it chooses gives what it gives on the CPU.
#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "tests/cpp/support/gpu_world.h"

namespace isthmus::test {
namespace {

Options auto_options(double inter_gbit, double intra_gbit) {
  Options options;
  options.codec = "auto";
  options.min_elements = 0;
  options.error_interval = 2;
  options.inter_gbit = inter_gbit;
  options.intra_gbit = intra_gbit;
  return options;
}

std::vector<Call> steps_of_two_units(int steps) {
  std::vector<Call> calls;
  for (int step = 0; step < steps; ++step) {
    const auto seed = static_cast<uint64_t>(step);
    calls.push_back({Collective::kReduceScatter, 4 * 5000, DataType::kFloat32, 1, "a", nullptr, seed});
    calls.push_back({Collective::kAllReduce, 4 * 3000 + 1, DataType::kBFloat16, .25, "b", nullptr, seed});
  }
  return calls;
}

// Over a link so slow that the speed of codecs does not matter.
TEST(CommunicatorAutoOnGpu, ChoosesAndGivesWhatTheCpuDoes) {
  const NodeMap map = NodeMap::parse("2x2", 4);
  const Options options = auto_options(1e-6, 1000);
  GpuWorld world(map, options);
  World cpu(map, options);
  expect_results_of_cpu(world, cpu, steps_of_two_units(4), /*in_flight=*/2);
  for (const auto& [hash, unit] : world.ranks[0].communicator->stats().units) {
    EXPECT_EQ(unit.codec, "quant") << unit.reason;
    const UnitStats on_cpu = cpu.ranks[0]->stats().units.at(hash);
    EXPECT_EQ(unit.settings, on_cpu.settings);
    EXPECT_NEAR(unit.dropped_squares / unit.given_squares, on_cpu.dropped_squares / on_cpu.given_squares, 1e-9);
  }
}

TEST(CommunicatorAutoOnGpu, MeasuresLinksOnStreamsAlikeOnAllRanks) {
  GpuWorld world(NodeMap::parse("2x2", 4), auto_options(0, 0));
  run_ranks_well(world.size(), [&](int rank) {
    std::vector<CallOnGpu> prepared = prepare(world, steps_of_two_units(4), rank);
    run(world.ranks[rank], prepared, 1);
    results_of(prepared);
  });
  for (const GpuWorld::Rank& rank : world.ranks) {
    for (const auto& [hash, unit] : rank.communicator->stats().units) {
      EXPECT_EQ(unit.reason, world.ranks[0].communicator->stats().units.at(hash).reason);
      EXPECT_FALSE(unit.reason.empty());
    }
  }
}

}  // namespace
}  // namespace isthmus::test
