// The communicator on emulated GPUs gives what it gives on the CPU, bit for bit, and orders what it enqueues.
#include <gtest/gtest.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <random>
#include <vector>

#include "isthmus/communicator.h"
#include "isthmus/error.h"
#include "tests/cpp/support/gpu_calls.h"
#include "tests/cpp/support/gpu_world.h"

namespace isthmus {
namespace {

using test::Array;
using test::Call;
using test::calls_of_one_step;
using test::DeviceArray;
using test::exact_options;
using test::expect_results_of_cpu;
using test::GpuSettings;
using test::GpuWorld;
using test::kFloatingTypes;
using test::lossy_options;
using test::Sums;
using test::World;

constexpr DataType kFloat32 = DataType::kFloat32;

std::vector<NodeMap> all_maps() {
  return {NodeMap::parse("1x1", 1), NodeMap::parse("1x2", 2), NodeMap::parse("2x1", 2), NodeMap::parse("4x1", 4),
          NodeMap::parse("2x2", 4), NodeMap::parse("3x2", 6), NodeMap({0, 1, 0, 1}),    NodeMap::parse("0,3|1,2", 4)};
}

class GpuOnEveryMap : public ::testing::TestWithParam<NodeMap> {};
INSTANTIATE_TEST_SUITE_P(Maps, GpuOnEveryMap, ::testing::ValuesIn(all_maps()), test::name_of_map);

// Every collective for each type and for sizes of all kinds, in random order; each unit in every step.
std::vector<Call> calls_of_every_kind(int64_t world_size, int steps) {
  std::vector<Call> calls;
  std::mt19937 random(7);
  for (int step = 0; step < steps; ++step) {
    const size_t begin = calls.size();
    for (const DataType dtype : kFloatingTypes) {
      for (const int64_t chunk : {0, 1, 301}) {
        const uint64_t seed = calls.size() + 1;
        calls.push_back({Collective::kReduceScatter, chunk * world_size, dtype, 0.5, "rs", {}, seed});
        calls.push_back({Collective::kAllGather, chunk * world_size, dtype, 1, "ag", {}, seed});
        calls.push_back({Collective::kAllReduce, chunk * world_size + chunk / 2, dtype, 0.3, "ar", {}, seed});
      }
    }
    std::shuffle(calls.begin() + static_cast<std::ptrdiff_t>(begin), calls.end(), random);
  }
  return calls;
}

TEST_P(GpuOnEveryMap, ResultsAreThoseOfTheCpu) {
  for (const Options& options : test::every_options()) {
    SCOPED_TRACE(options.codec);
    GpuWorld world(GetParam(), options);
    World cpu(GetParam(), options);
    expect_results_of_cpu(world, cpu, calls_of_every_kind(world.size(), 2), /*in_flight=*/7);
  }
}

std::vector<Options> lossy_options_of_both_tiers() {
  std::vector<Options> all = test::every_lossy_options();
  all.push_back(lossy_options());
  all.back().tiers = TierMode::kFlat;
  return all;
}

class EveryLossyCodecOnGpu : public ::testing::TestWithParam<Options> {};
INSTANTIATE_TEST_SUITE_P(Codecs, EveryLossyCodecOnGpu, ::testing::ValuesIn(lossy_options_of_both_tiers()),
                         test::name_of_codec);

// Where one stream is slow, whatever should wait for it and does not comes too early.
TEST_P(EveryLossyCodecOnGpu, AnyStreamMayBeSlow) {
  for (int slow = -1; slow < kNumLanes; ++slow) {
    GpuWorld world(NodeMap::parse("2x2", 4), GetParam());
    World cpu(world.map, GetParam());
    for (const GpuWorld::Rank& rank : world.ranks) {
      const Stream stream = slow < 0 ? rank.stream : rank.gpu->lane(static_cast<Lane>(slow));
      rank.gpu->slow_down(stream, std::chrono::microseconds(200));
    }
    SCOPED_TRACE(slow);
    expect_results_of_cpu(world, cpu, calls_of_one_step(world.size(), 50), /*in_flight=*/100);
  }
}

// All buffers that a collective reads and writes are the caller's again behind its event, and scratch memory outlives
// the communicator for as long as work uses it.
TEST_P(EveryLossyCodecOnGpu, MayBeDestroyedWhileItsWorkIsUnderWay) {
  GpuWorld world(NodeMap::parse("2x2", 4), GetParam());
  World cpu(world.map, GetParam());
  const std::vector<Call> calls = calls_of_one_step(world.size(), 100);
  test::run_ranks_well(world.size(), [&](int r) {
    GpuWorld::Rank& rank = world.ranks[r];
    rank.gpu->slow_down(rank.gpu->lane(Lane::kEncode), std::chrono::microseconds(500));
    std::vector<test::CallOnGpu> prepared = prepare(world, calls, r);
    run(rank, prepared, 3);
    rank.communicator.reset();
    expect_results(prepared, calls, run_on_cpu(*cpu.ranks[r], calls, r), r);
  });
}

// Each rank's chunk of its own input, and its own place in what is gathered.
TEST_P(GpuOnEveryMap, CollectivesInPlace) {
  for (const Options& options : test::every_lossy_options()) {
    GpuWorld world(GetParam(), options);
    World cpu(GetParam(), options);
    for (const DataType dtype : {kFloat32, DataType::kBFloat16}) {
      const std::vector<Array> inputs = test::random_inputs(world.size(), 2100, dtype);
      test::run_ranks_well(world.size(), [&](int r) {
        const GpuWorld::Rank& rank = world.ranks[r];
        const UnitKey key{"unit", 2100 * world.size(), dtype};
        const DeviceArray on_gpu(*rank.gpu, inputs[r]);
        const Buffer data = on_gpu.buffer();
        rank.gpu->wait(rank.communicator->reduce_scatter(data, data.part(r, 2100), {key, 0.5}, rank.stream),
                       rank.stream);
        rank.communicator->all_gather(data.part(r, 2100), data, rank.stream);
        Array expected = inputs[r];
        const Buffer on_cpu = expected.buffer();
        cpu.ranks[r]->reduce_scatter(on_cpu, on_cpu.part(r, 2100), {key, 0.5});
        cpu.ranks[r]->all_gather(on_cpu.part(r, 2100), on_cpu);
        EXPECT_TRUE(on_gpu.read().bytes() == expected.bytes()) << "rank " << r << ", " << to_string(dtype);
      });
    }
  }
}

// From two streams of the caller's, of which neither waits for the other.
TEST_P(EveryLossyCodecOnGpu, CallersMayUseSeveralStreams) {
  GpuWorld world(NodeMap::parse("2x2", 4), GetParam());
  World cpu(world.map, GetParam());
  const std::vector<Call> calls = calls_of_one_step(world.size(), 100);
  test::run_ranks_well(world.size(), [&](int r) {
    const GpuWorld::Rank& rank = world.ranks[r];
    const Stream streams[] = {rank.stream, rank.gpu->make_stream(), {}};
    std::vector<test::CallOnGpu> prepared = prepare(world, calls, r);
    for (size_t i = 0; i < calls.size(); ++i) {
      prepared[i].start(*rank.communicator, streams[i % 3]);
    }
    for (size_t i = 0; i < calls.size(); ++i) {
      prepared[i].finish(streams[i % 3]);
    }
    expect_results(prepared, calls, run_on_cpu(*cpu.ranks[r], calls, r), r);
  });
}

// Nothing is written to the shard before the caller's stream admits it, plainly or not.
TEST_P(EveryLossyCodecOnGpu, InputsMayHaveAStreamOfTheirOwn) {
  GpuWorld world(NodeMap::parse("2x2", 4), GetParam());
  World cpu(world.map, GetParam());
  const std::vector<Call> calls = calls_of_one_step(world.size(), 100);
  test::run_ranks_well(world.size(), [&](int r) {
    const GpuWorld::Rank& rank = world.ranks[r];
    std::vector<test::CallOnGpu> prepared = prepare(world, calls, r);
    for (size_t i = 0; i < calls.size(); ++i) {
      const bool has_own = calls[i].collective == Collective::kReduceScatter;
      prepared[i].start(*rank.communicator, rank.stream, has_own ? rank.other_stream : rank.stream);
      prepared[i].finish(rank.stream);
    }
    expect_results(prepared, calls, run_on_cpu(*cpu.ranks[r], calls, r), r);
  });
}

TEST_P(EveryLossyCodecOnGpu, WithoutTiersOfTheirOwnGathersQueueBehindReductions) {
  for (const NodeMap& map : {NodeMap::parse("2x2", 4), NodeMap({0, 1, 0, 1}), NodeMap::parse("2x1", 2)}) {
    GpuWorld world(map, GetParam(), GpuSettings{.gather_tiers = false});
    World cpu(map, GetParam());
    expect_results_of_cpu(world, cpu, calls_of_one_step(world.size(), 100), /*in_flight=*/100);
  }
}

TEST_P(GpuOnEveryMap, ASingleTierIsThatOfTheCpu) {
  Options options = lossy_options();
  options.tiers = TierMode::kFlat;
  GpuWorld world(GetParam(), options);
  World cpu(GetParam(), options);
  expect_results_of_cpu(world, cpu, calls_of_every_kind(world.size(), 2), /*in_flight=*/7);
  for (int rank = 0; rank < world.size(); ++rank) {
    test::expect_equal_stats(*world.ranks[rank].communicator, *cpu.ranks[rank]);
  }
}

// Where sums of so many ranks are taken in the type of the gradient: what it may add to the bound of
// docs/algorithms.md.
double bound_like_nccl(const NodeMap& map, int num_ranks, DataType dtype, double scale, double sum, double magnitudes) {
  const double roundings = num_ranks * test::unit_roundoff(dtype) * 1.1;
  const double divided = dtype == DataType::kFloat16 ? map.world_size() * num_ranks * 0x1p-23 : 0;
  return test::exact_path_bound(map, dtype, scale, sum, magnitudes) +
         std::fabs(scale) * (roundings * magnitudes + divided);
}

void expect_sums_like_nccl(const NodeMap& map, const Options& options) {
  GpuWorld world(map, options, GpuSettings{.sums = Sums::kLikeNccl});
  const int num_ranks = options.tiers == TierMode::kFlat ? map.world_size() : map.ranks_per_node();
  for (const DataType dtype : kFloatingTypes) {
    const int64_t elements = 100 * world.size();
    std::vector<Call> calls = {{Collective::kReduceScatter, elements, dtype, 0.5},
                               {Collective::kAllReduce, elements, dtype, 0.5}};
    std::vector<test::Results> results(static_cast<size_t>(world.size()));
    test::run_ranks_well(world.size(), [&](int r) {
      std::vector<test::CallOnGpu> prepared = prepare(world, calls, r);
      run(world.ranks[r], prepared, 2);
      results[r] = results_of(prepared);
    });
    std::vector<Array> inputs;
    for (int rank = 0; rank < world.size(); ++rank) {
      inputs.push_back(calls[0].input(rank, world.size()));
    }
    const std::vector<double> sum = test::sum_of(inputs);
    const std::vector<double> magnitudes = test::sum_of_magnitudes(inputs);
    const std::vector<double> reduced = results[0][1].values();
    for (int rank = 0; rank < world.size(); ++rank) {
      ASSERT_TRUE(results[rank][1].bytes() == results[0][1].bytes());
      const std::vector<double> shard = results[rank][0].values();
      for (size_t i = 0; i < shard.size(); ++i) {
        const size_t whole = static_cast<size_t>(rank) * shard.size() + i;
        const double bound = bound_like_nccl(map, num_ranks, dtype, 0.5, sum[whole], magnitudes[whole]);
        ASSERT_NEAR(shard[i], 0.5 * sum[whole], bound) << to_string(dtype);
        ASSERT_NEAR(reduced[whole], 0.5 * sum[whole], bound) << to_string(dtype);
      }
    }
  }
}

TEST_P(GpuOnEveryMap, SumsLikeNcclStayWithinTheirBound) {
  Options options = exact_options();
  expect_sums_like_nccl(GetParam(), options);
  options.tiers = TierMode::kFlat;
  expect_sums_like_nccl(GetParam(), options);
}

TEST(CommunicatorOnGpu, AverageOfLargeFloat16ValuesDoesNotOverflowLikeNccl) {
  for (const Options& options : test::every_options()) {
    GpuWorld world(NodeMap::parse("2x3", 6), options, GpuSettings{.sums = Sums::kLikeNccl});
    test::run_ranks_well(world.size(), [&](int r) {
      const GpuWorld::Rank& rank = world.ranks[r];
      const DeviceArray data(*rank.gpu, Array(std::vector<double>(6 * 64, 60000), DataType::kFloat16));
      rank.communicator->all_reduce(
          data.buffer(), {{"unit", 6 * 64, DataType::kFloat16, Collective::kAllReduce}, 1.0 / 6}, rank.stream);
      for (const double value : data.read().values()) {
        ASSERT_TRUE(std::isfinite(value));
        if (options.codec == "none") {
          ASSERT_NEAR(value, 60000, 64);
        }
      }
    });
  }
}

}  // namespace
}  // namespace isthmus
