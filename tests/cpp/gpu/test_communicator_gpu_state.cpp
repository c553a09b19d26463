// State and statistics of communicators on emulated GPUs are those of the CPU.
#include <gtest/gtest.h>

#include <chrono>
#include <cstdint>
#include <string>
#include <vector>

#include "isthmus/communicator.h"
#include "isthmus/error.h"
#include "tests/cpp/support/gpu_calls.h"
#include "tests/cpp/support/gpu_world.h"

namespace isthmus::test {
namespace {

class EveryLossyCodecOnGpu : public ::testing::TestWithParam<Options> {};
INSTANTIATE_TEST_SUITE_P(Codecs, EveryLossyCodecOnGpu, ::testing::ValuesIn(every_lossy_options()), name_of_codec);

// With measured errors; tagc after a dense step.
TEST_P(EveryLossyCodecOnGpu, StateAndStatisticsAreThoseOfTheCpu) {
  Options options = GetParam();
  options.error_interval = 1;
  options.dense_steps = options.codec == "tagc" ? 1 : 0;
  for (const NodeMap& map : {NodeMap::parse("2x2", 4), NodeMap::parse("3x1", 3)}) {
    GpuWorld world(map, options);
    World cpu(map, options);
    const auto step = [&](uint64_t seed) {
      expect_results_of_cpu(world, cpu, calls_of_one_step(world.size(), seed), /*in_flight=*/8);
    };
    step(100);
    expect_equal_state(world, cpu);
    on_both(world, cpu, [](Communicator& communicator) { communicator.units().skip_step(); });
    step(200);
    on_both(world, cpu, [](Communicator& communicator) { communicator.units().begin_step(std::nullopt); });
    step(300);
    on_both(world, cpu, [](Communicator& communicator) {
      communicator.reset_stats();
      communicator.units().skip_step();
      communicator.units().scale_residuals(3);
    });
    expect_equal_state(world, cpu);
    step(400);
    expect_equal_state(world, cpu);
    for (const uint64_t number : {70, 71}) {
      on_both(world, cpu, [=](Communicator& communicator) { communicator.units().begin_step(number); });
      step(number);
      on_both(world, cpu, [](Communicator& communicator) { communicator.units().undo_step(); });
      expect_equal_state(world, cpu);
    }
    on_both(world, cpu, [](KeyedCommunicator& communicator) { communicator.let_go(); });
    step(500);
    expect_equal_state(world, cpu);
  }
}

// Nothing waits for what is under way, and it counts as if all had been done in this order.
TEST_P(EveryLossyCodecOnGpu, StateChangesBetweenCollectivesThatAreUnderWay) {
  GpuWorld world(NodeMap::parse("2x2", 4), GetParam());
  World cpu(world.map, GetParam());
  const std::vector<Call> calls = calls_of_one_step(world.size(), 100);
  run_ranks_well(world.size(), [&](int r) {
    const GpuWorld::Rank& rank = world.ranks[r];
    for (Lane lane : {Lane::kEncode, Lane::kDecode, Lane::kGatherIntra}) {
      rank.gpu->slow_down(rank.gpu->lane(lane), std::chrono::microseconds(300));
    }
    std::vector<CallOnGpu> prepared = prepare(world, calls, r);
    const auto change = [](KeyedCommunicator& communicator, int number) {
      if (number == 0) {
        communicator.units().scale_residuals(0.5);
        communicator.units().begin_step(std::nullopt);
      } else if (number == 1) {
        communicator.units().skip_step();
      } else {
        communicator.let_go();
      }
    };
    for (const int number : {0, 1, 2, 3}) {
      run(rank, prepared, calls.size());
      change(*rank.communicator, number);
    }
    Results expected;
    for (const int number : {0, 1, 2, 3}) {
      expected = run_on_cpu(*cpu.ranks[r], calls, r);
      change(*cpu.ranks[r], number);
    }
    expect_results(prepared, calls, expected, r);
  });
  expect_equal_state(world, cpu);
}

// What is left of a spike is dropped, or not, on both alike; counts are in the statistics.
TEST_P(EveryLossyCodecOnGpu, SpikesAreThoseOfTheCpu) {
  GpuWorld world(NodeMap::parse("2x2", 4), GetParam());
  World cpu(world.map, GetParam());
  for (const uint64_t seed : {100, 200, 300}) {
    expect_results_of_cpu(world, cpu, calls_of_one_step(world.size(), seed), /*in_flight=*/8);
    expect_equal_state(world, cpu);
    on_both(world, cpu, [](Communicator& communicator) { communicator.units().scale_residuals(1e6); });
  }
  EXPECT_EQ(cpu.ranks[0]->stats().codec.spikes > 0, cpu.ranks[0]->stats().residual_bytes > 0);
}

// Pieces of several segments, each a packet of its own.
TEST_P(EveryLossyCodecOnGpu, SegmentsAreThoseOfTheCpu) {
  Options options = GetParam();
  options.segments = 3;
  GpuWorld world(NodeMap::parse("2x2", 4), options);
  World cpu(world.map, options);
  std::vector<Call> calls;
  for (const uint64_t seed : {1, 2, 3}) {
    calls.push_back({Collective::kReduceScatter, 2 * 9000 * 2 + 8, DataType::kBFloat16, 0.5, "rs", {}, seed});
    calls.push_back({Collective::kAllReduce, 2 * 9000 * 2 + 5, kFloat32, 0.25, "ar", {}, seed});
  }
  expect_results_of_cpu(world, cpu, calls, /*in_flight=*/3);
  expect_equal_state(world, cpu);
}

TEST_P(EveryLossyCodecOnGpu, AnotherScaleInEachStep) {
  GpuWorld world(NodeMap::parse("2x1", 2), GetParam());
  World cpu(world.map, GetParam());
  std::vector<Call> calls;
  for (const double scale : {1.0, 0.125, 3.0, 0.0, -1.0}) {
    calls.push_back({Collective::kReduceScatter, 4000, kFloat32, scale, "unit", {}, calls.size()});
    calls.push_back({Collective::kAllReduce, 4001, DataType::kFloat16, scale, "unit", {}, calls.size()});
  }
  expect_results_of_cpu(world, cpu, calls, calls.size());
  expect_equal_state(world, cpu);
}

TEST_P(EveryLossyCodecOnGpu, AUnitIsLoadedFromTheHost) {
  GpuWorld world(NodeMap::parse("2x2", 4), GetParam());
  World cpu(world.map, GetParam());
  const std::vector<Call> calls = calls_of_one_step(world.size(), 100);
  expect_results_of_cpu(world, cpu, calls, 2);
  GpuWorld restored(world.map, GetParam());
  for (int rank = 0; rank < world.size(); ++rank) {
    for (UnitState state : cpu.ranks[rank]->units().states()) {
      restored.ranks[rank].communicator->load(state);
      state.residual.push_back(0);
      EXPECT_THROW(restored.ranks[rank].communicator->load(state), Error);
    }
    expect_equal_units(*restored.ranks[rank].communicator, *cpu.ranks[rank]);
  }
  expect_results_of_cpu(restored, cpu, calls_of_one_step(world.size(), 200), 100);
  for (int rank = 0; rank < world.size(); ++rank) {
    expect_equal_units(*restored.ranks[rank].communicator, *cpu.ranks[rank]);
  }
}

TEST_P(EveryLossyCodecOnGpu, NothingIsAllocatedInASteadyState) {
  GpuWorld world(NodeMap::parse("3x2", 6), GetParam());
  World cpu(world.map, GetParam());
  int64_t scratch_bytes = 0;
  for (int step = 0; step < 4; ++step) {
    expect_results_of_cpu(world, cpu, calls_of_one_step(world.size(), 100), /*in_flight=*/3);
    const int64_t bytes = world.ranks[0].communicator->stats().scratch_bytes;
    EXPECT_TRUE(step < 2 || bytes == scratch_bytes);
    scratch_bytes = bytes;
  }
}

}  // namespace
}  // namespace isthmus::test
