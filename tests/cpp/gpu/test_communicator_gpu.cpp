// The communicator on emulated GPUs gives what it gives on the CPU, bit for bit, and orders what it enqueues.
#include <gtest/gtest.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <deque>
#include <functional>
#include <random>
#include <string>
#include <vector>

#include "isthmus/communicator.h"
#include "isthmus/error.h"
#include "tests/cpp/support/gpu_calls.h"
#include "tests/cpp/support/gpu_world.h"

namespace isthmus::test {
namespace {

std::vector<NodeMap> all_maps() {
  return {NodeMap::parse("1x1", 1), NodeMap::parse("1x2", 2), NodeMap::parse("2x1", 2), NodeMap::parse("4x1", 4),
          NodeMap::parse("2x2", 4), NodeMap::parse("3x2", 6), NodeMap({0, 1, 0, 1}),    NodeMap::parse("0,3|1,2", 4)};
}

class GpuOnEveryMap : public ::testing::TestWithParam<NodeMap> {};
INSTANTIATE_TEST_SUITE_P(Maps, GpuOnEveryMap, ::testing::ValuesIn(all_maps()), name_of_map);

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
  std::vector<Options> all = every_options();
  all.push_back(flat_options());
  for (const Options& options : all) {
    SCOPED_TRACE(options.to_string());
    GpuWorld world(GetParam(), options);
    World cpu(GetParam(), options);
    expect_results_of_cpu(world, cpu, calls_of_every_kind(world.size(), 2), /*in_flight=*/7);
    for (int rank = 0; rank < world.size(); ++rank) {
      expect_equal_stats(*world.ranks[rank].communicator, *cpu.ranks[rank]);
    }
  }
}

class EveryLossyCodecOnGpu : public ::testing::TestWithParam<Options> {};
INSTANTIATE_TEST_SUITE_P(Codecs, EveryLossyCodecOnGpu, ::testing::ValuesIn(every_lossy_options_of_both_tiers()),
                         name_of_codec);

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
  expect_enqueued_as_on_cpu(world, cpu, calls_of_one_step(world.size(), 100), [](GpuWorld::Rank& rank, auto& prepared) {
    rank.gpu->slow_down(rank.gpu->lane(Lane::kEncode), std::chrono::microseconds(500));
    run(rank, prepared, 3);
    rank.communicator.reset();
  });
}

// Each rank's chunk of its own input, and its own place in what is gathered.
TEST_P(GpuOnEveryMap, CollectivesInPlace) {
  for (const Options& options : every_lossy_options()) {
    GpuWorld world(GetParam(), options);
    World cpu(GetParam(), options);
    for (const DataType dtype : {kFloat32, DataType::kBFloat16}) {
      const std::vector<Array> inputs = random_inputs(world.size(), 2100, dtype);
      run_ranks_well(world.size(), [&](int r) {
        const GpuWorld::Rank& rank = world.ranks[r];
        const UnitKey key{"unit", 2100 * world.size(), dtype};
        const DeviceArray on_gpu(*rank.gpu, inputs[r].view());
        const Buffer data = on_gpu.buffer();
        rank.gpu->wait(rank.communicator->reduce_scatter(data, data.part(r, 2100), {key, 0.5}, rank.stream),
                       rank.stream);
        rank.communicator->all_gather(data.part(r, 2100), data, rank.stream);
        Array expected = inputs[r];
        const Buffer on_cpu = expected.buffer();
        cpu.ranks[r]->reduce_scatter(on_cpu, on_cpu.part(r, 2100), {key, 0.5});
        cpu.ranks[r]->all_gather(on_cpu.part(r, 2100), on_cpu);
        EXPECT_TRUE(on_gpu.get().bytes() == expected.bytes()) << "rank " << r << ", " << to_string(dtype);
      });
    }
  }
}

// From two streams of the caller's, of which neither waits for the other.
TEST_P(EveryLossyCodecOnGpu, CallersMayUseSeveralStreams) {
  GpuWorld world(NodeMap::parse("2x2", 4), GetParam());
  World cpu(world.map, GetParam());
  expect_enqueued_as_on_cpu(world, cpu, calls_of_one_step(world.size(), 100), [](GpuWorld::Rank& rank, auto& prepared) {
    const Stream streams[] = {rank.stream, rank.gpu->make_stream(), {}};
    for (size_t i = 0; i < prepared.size(); ++i) {
      prepared[i].start(*rank.communicator, streams[i % 3]);
    }
    for (size_t i = 0; i < prepared.size(); ++i) {
      prepared[i].finish(streams[i % 3]);
    }
  });
}

// Nothing is written to the output before the caller's stream admits it, plainly or not.
TEST_P(EveryLossyCodecOnGpu, InputsMayHaveAStreamOfTheirOwn) {
  GpuWorld world(NodeMap::parse("2x2", 4), GetParam());
  World cpu(world.map, GetParam());
  const std::vector<Call> calls = calls_of_one_step(world.size(), 100);
  expect_enqueued_as_on_cpu(world, cpu, calls, [&](GpuWorld::Rank& rank, auto& prepared) {
    for (size_t i = 0; i < calls.size(); ++i) {
      const bool has_own = !calls[i].gathers();
      prepared[i].start(*rank.communicator, rank.stream, has_own ? rank.other_stream : rank.stream);
      prepared[i].finish(rank.stream);
    }
  });
}

TEST_P(EveryLossyCodecOnGpu, WithoutTiersOfTheirOwnGathersQueueBehindReductions) {
  for (const NodeMap& map : {NodeMap::parse("2x2", 4), NodeMap({0, 1, 0, 1}), NodeMap::parse("2x1", 2)}) {
    GpuWorld world(map, GetParam(), GpuSettings{.gather_tiers = false});
    World cpu(map, GetParam());
    expect_results_of_cpu(world, cpu, calls_of_one_step(world.size(), 100), /*in_flight=*/100);
  }
}

// Where sums of so many ranks are taken in the type of the gradient: what it may add to the bound of
// docs/algorithms.md.
double bound_like_nccl(const NodeMap& map, int num_ranks, DataType dtype, double scale, double sum, double magnitudes) {
  const double roundings = num_ranks * unit_roundoff(dtype) * 1.1;
  const double divided = dtype == DataType::kFloat16 ? map.world_size() * num_ranks * 0x1p-23 : 0;
  return exact_path_bound(map, dtype, scale, sum, magnitudes) + std::fabs(scale) * (roundings * magnitudes + divided);
}

void expect_sums_like_nccl(const NodeMap& map, const Options& options) {
  GpuWorld world(map, options, GpuSettings{.sums = Sums::kLikeNccl});
  const int num_ranks = options.tiers == TierMode::kFlat ? map.world_size() : map.ranks_per_node();
  for (const DataType dtype : kFloatingTypes) {
    const int64_t elements = 100 * world.size();
    std::vector<Call> calls = {{Collective::kReduceScatter, elements, dtype, 0.5},
                               {Collective::kAllReduce, elements, dtype, 0.5}};
    std::vector<Results> results(static_cast<size_t>(world.size()));
    run_ranks_well(world.size(), [&](int r) {
      std::vector<CallOnGpu> prepared = prepare(world, calls, r);
      run(world.ranks[r], prepared, 2);
      results[r] = results_of(prepared);
    });
    std::vector<Array> inputs;
    for (int rank = 0; rank < world.size(); ++rank) {
      inputs.push_back(calls[0].input(rank, world.size()));
    }
    const std::vector<double> sum = sum_of(inputs);
    const std::vector<double> magnitudes = sum_of_magnitudes(inputs);
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
  for (const Options& options : every_options()) {
    GpuWorld world(NodeMap::parse("2x3", 6), options, GpuSettings{.sums = Sums::kLikeNccl});
    run_ranks_well(world.size(), [&](int r) {
      const GpuWorld::Rank& rank = world.ranks[r];
      const DeviceArray data(*rank.gpu, Array(std::vector<double>(6 * 64, 60000), DataType::kFloat16).view());
      rank.communicator->all_reduce(
          data.buffer(), {{"unit", 6 * 64, DataType::kFloat16, Collective::kAllReduce}, 1.0 / 6}, rank.stream);
      for (const double value : data.get().values()) {
        ASSERT_TRUE(std::isfinite(value));
        if (options.codec == "none") {
          ASSERT_NEAR(value, 60000, 64);
        }
      }
    });
  }
}

// While one lane of every rank stands still, others go on.
class Overlap : public ::testing::Test {
 protected:
  // Started by every rank, in this order, while the lane stands still.
  struct Started {
    Call call;
    Stream GpuWorld::Rank::*stream;
  };
  void start_while_held(Lane lane, const std::vector<Started>& all) {
    std::deque<CallOnGpu> prepared;  // which waits for the GPU
    for (const Started& started : all) {
      for (int r = 0; r < world_.size(); ++r) {
        prepared.emplace_back(*world_.ranks[r].gpu, started.call, r, world_.size());
      }
    }
    for (const GpuWorld::Rank& rank : world_.ranks) {
      rank.gpu->enqueue(rank.gpu->lane(lane), "hold", {}, [this] { released_.wait(); });
    }
    auto next = prepared.begin();
    for (const Started& started : all) {
      for (const GpuWorld::Rank& rank : world_.ranks) {
        next->start(*rank.communicator, rank.*started.stream);
        next->finish(rank.*started.stream);
        ++next;
      }
    }
  }
  bool all_reach(const std::function<Stream(const GpuWorld::Rank&)>& stream) {
    std::deque<Mark> marks;
    for (const GpuWorld::Rank& rank : world_.ranks) {
      Mark& mark = marks.emplace_back();
      rank.gpu->enqueue(stream(rank), "reach", {}, [&mark] { mark.set(); });
    }
    const bool reached =
        std::all_of(marks.begin(), marks.end(), [](Mark& mark) { return mark.wait_for(std::chrono::seconds(5)); });
    released_.set();
    for (const GpuWorld::Rank& rank : world_.ranks) {
      rank.gpu->synchronize();
    }
    return reached;
  }

  GpuWorld world_{NodeMap::parse("2x2", 4), lossy_options()};
  Mark released_;
};

TEST_F(Overlap, GathersDoNotQueueBehindReductions) {
  const Started reduction = {{Collective::kReduceScatter, 8000, kFloat32}, &GpuWorld::Rank::stream};
  const Started gather = {{Collective::kAllGather, 8000, kFloat32}, &GpuWorld::Rank::other_stream};
  start_while_held(Lane::kEncode, {reduction, reduction, reduction, gather});
  EXPECT_TRUE(all_reach([](const GpuWorld::Rank& rank) { return rank.other_stream; }));
}

// While one of two units stands still in `held`, the other one leaves `reached`.
struct Stages {
  Collective collective;
  Lane held;
  Lane reached;
};

class OverlapOfStages : public Overlap, public ::testing::WithParamInterface<Stages> {};
INSTANTIATE_TEST_SUITE_P(Lanes, OverlapOfStages,
                         ::testing::Values(Stages{Collective::kReduceScatter, Lane::kEncode, Lane::kIntra},
                                           Stages{Collective::kReduceScatter, Lane::kInter, Lane::kEncode},
                                           Stages{Collective::kReduceScatter, Lane::kDecode, Lane::kInter},
                                           Stages{Collective::kAllReduce, Lane::kDecode, Lane::kInter},
                                           Stages{Collective::kAllReduce, Lane::kGatherInter, Lane::kDecode}));

TEST_P(OverlapOfStages, OfTwoUnits) {
  start_while_held(GetParam().held, {{{GetParam().collective, 8000, kFloat32}, &GpuWorld::Rank::stream},
                                     {{GetParam().collective, 4000, kFloat32}, &GpuWorld::Rank::other_stream}});
  EXPECT_TRUE(all_reach([](const GpuWorld::Rank& rank) { return rank.gpu->lane(GetParam().reached); }));
}

// Two reductions of one caller, whose stream stands still, get as far as the last lane before the one that writes their
// outputs.
struct Begun {
  Collective collective;
  Lane reached;
};

class OverlapOfInputs : public Overlap, public ::testing::WithParamInterface<Begun> {};
INSTANTIATE_TEST_SUITE_P(Collectives, OverlapOfInputs,
                         ::testing::Values(Begun{Collective::kReduceScatter, Lane::kInter},
                                           Begun{Collective::kAllReduce, Lane::kGatherInter}));

TEST_P(OverlapOfInputs, AReductionBeginsWhenItsInputIsThere) {
  const std::vector<Call> calls = {{GetParam().collective, 8000, kFloat32, 1, "a"},
                                   {GetParam().collective, 4000, DataType::kBFloat16, 0.5, "b"}};
  World cpu(world_.map, lossy_options());
  std::deque<std::vector<CallOnGpu>> prepared;
  for (int r = 0; r < world_.size(); ++r) {
    prepared.push_back(prepare(world_, calls, r));
  }
  for (const GpuWorld::Rank& rank : world_.ranks) {
    rank.gpu->enqueue(rank.stream, "hold", {}, [this] { released_.wait(); });
  }
  for (int r = 0; r < world_.size(); ++r) {
    const GpuWorld::Rank& rank = world_.ranks[r];
    for (CallOnGpu& call : prepared[r]) {
      call.start(*rank.communicator, rank.stream, rank.other_stream);
      call.finish(rank.stream);
    }
  }
  EXPECT_TRUE(all_reach([](const GpuWorld::Rank& rank) { return rank.gpu->lane(GetParam().reached); }));
  run_ranks_well(world_.size(),
                 [&](int r) { expect_results(prepared[r], calls, run_on_cpu(*cpu.ranks[r], calls, r), r); });
}

TEST(CommunicatorOnGpu, PhasesAreRangesAndOperationsOfANodeAreGroups) {
  GpuWorld world(NodeMap::parse("3x2", 6), lossy_options());
  run_ranks_well(world.size(), [&](int r) {
    const GpuWorld::Rank& rank = world.ranks[r];
    std::vector<CallOnGpu> calls =
        prepare(world, {{Collective::kAllReduce, 600, kFloat32}, {Collective::kAllGather, 600, kFloat32}}, r);
    run(rank, calls, 1);
    rank.gpu->synchronize();
  });
  const GpuWorld::Rank& rank = world.ranks[0];
  EXPECT_EQ(
      rank.gpu->ranges(),
      (std::vector<std::string>{"intra reduce-scatter", "encode", "inter exchange", "intra reduce-scatter", "decode",
                                "encode result", "inter all-gather", "intra all-gather", "intra all-gather",
                                "decode result", "inter all-gather", "intra all-gather", "intra all-gather"}));
  EXPECT_EQ(rank.intra->groups(), (std::vector<int>{3, 1})) << "units and sums of other nodes, then the own";
  EXPECT_EQ(rank.gather_intra->groups(), (std::vector<int>{2, 2})) << "those of other nodes, after the own one";
}

TEST(CommunicatorOnGpu, PhasesAreTimedWhenAsked) {
  Options options = lossy_options();
  options.device_timings = true;
  GpuWorld world(NodeMap::parse("2x2", 4), options);
  World cpu(world.map, options);
  expect_results_of_cpu(world, cpu, calls_of_one_step(world.size(), 100), /*in_flight=*/8);
  const Stats stats = world.ranks[0].communicator->stats();
  for (const Collective collective : {Collective::kReduceScatter, Collective::kAllReduce}) {
    const CollectiveStats& timed = stats.collectives[static_cast<size_t>(collective)];
    for (const double seconds : {timed.intra_s, timed.encode_s, timed.exchange_s, timed.decode_s}) {
      EXPECT_GT(seconds, 0) << to_string(collective);
    }
  }
  world.ranks[0].communicator->reset_stats();
  EXPECT_EQ(world.ranks[0].communicator->stats().collectives[0].encode_s, 0);
}

}  // namespace
}  // namespace isthmus::test
