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

#include "gpu_world.h"
#include "isthmus/communicator.h"
#include "isthmus/error.h"

namespace isthmus {
namespace {

using test::Array;
using test::Call;
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
      for (const int64_t chunk : {0, 1, 7, 300}) {
        const uint64_t seed = calls.size() + 1;
        calls.push_back({Collective::kReduceScatter, chunk * world_size, dtype, 0.5, "rs", nullptr, seed});
        calls.push_back({Collective::kAllGather, chunk * world_size, dtype, 1, "ag", nullptr, seed});
        calls.push_back({Collective::kAllReduce, chunk * world_size + chunk / 2, dtype, 0.3, "ar", nullptr, seed});
      }
    }
    std::shuffle(calls.begin() + static_cast<std::ptrdiff_t>(begin), calls.end(), random);
  }
  return calls;
}

TEST_P(GpuOnEveryMap, ResultsAreThoseOfTheCpu) {
  for (const Options& options : {exact_options(), lossy_options()}) {
    GpuWorld world(GetParam(), options);
    World cpu(GetParam(), options);
    expect_results_of_cpu(world, cpu, calls_of_every_kind(world.size(), 3), /*in_flight=*/7);
  }
}

// As large as two blocks of tagc and a bit, and one unit more often than there are sets of scratch memory.
std::vector<Call> calls_of_one_step(int64_t world_size, uint64_t seed) {
  std::vector<Call> calls;
  for (int repetition = 0; repetition < 2; ++repetition) {
    for (const char* unit : {"a", "b"}) {
      calls.push_back({Collective::kReduceScatter, 2100 * world_size, DataType::kBFloat16, 0.5, unit, nullptr, ++seed});
      calls.push_back({Collective::kReduceScatter, 700 * world_size, kFloat32, 1, unit, "by request", ++seed});
      calls.push_back({Collective::kAllGather, 900 * world_size, DataType::kBFloat16, 1, "", nullptr, ++seed});
      calls.push_back({Collective::kAllReduce, 1500 * world_size + 1, kFloat32, 0.25, unit, nullptr, ++seed});
    }
  }
  return calls;
}

// Where one stream is slow, whatever should wait for it and does not comes too early.
TEST(CommunicatorOnGpu, AnyStreamMayBeSlow) {
  for (int slow = -1; slow < kNumLanes; ++slow) {
    GpuWorld world(NodeMap::parse("2x2", 4), lossy_options());
    World cpu(world.map, lossy_options());
    for (const GpuWorld::Rank& rank : world.ranks) {
      const Stream stream = slow < 0 ? rank.stream : rank.gpu->lane(static_cast<Lane>(slow));
      rank.gpu->slow_down(stream, std::chrono::microseconds(200));
    }
    SCOPED_TRACE(slow);
    expect_results_of_cpu(world, cpu, calls_of_one_step(world.size(), 50), /*in_flight=*/100);
  }
}

// Of everything that a step leaves behind.
void expect_equal_stats(Communicator& on_gpu, Communicator& on_cpu) {
  const Stats gpu = on_gpu.stats();
  const Stats cpu = on_cpu.stats();
  for (size_t c = 0; c < gpu.collectives.size(); ++c) {
    EXPECT_EQ(gpu.collectives[c].calls, cpu.collectives[c].calls);
    EXPECT_EQ(gpu.collectives[c].packed_calls, cpu.collectives[c].packed_calls);
    EXPECT_EQ(gpu.collectives[c].intra.sent_bytes, cpu.collectives[c].intra.sent_bytes);
    EXPECT_EQ(gpu.collectives[c].inter.inter_node_sent_bytes, cpu.collectives[c].inter.inter_node_sent_bytes);
    EXPECT_EQ(gpu.collectives[c].encode_s, 0) << "nobody asked for timings";
  }
  EXPECT_EQ(gpu.codec.encoded_elements, cpu.codec.encoded_elements);
  EXPECT_EQ(gpu.codec.kept_elements, cpu.codec.kept_elements);
  EXPECT_EQ(gpu.codec.held_back_elements, cpu.codec.held_back_elements);
  EXPECT_EQ(gpu.codec.non_finite_blocks, cpu.codec.non_finite_blocks);
  EXPECT_EQ(gpu.compressed_calls, cpu.compressed_calls);
  EXPECT_EQ(gpu.exact_calls, cpu.exact_calls);
  EXPECT_EQ(gpu.skipped_steps, cpu.skipped_steps);
  EXPECT_EQ(gpu.skipped_elements, cpu.skipped_elements);
  EXPECT_EQ(gpu.num_units, cpu.num_units);
  EXPECT_EQ(gpu.residual_bytes, cpu.residual_bytes);
}

Array copy_of(Device& device, ConstBuffer buffer) {
  Array copy(buffer.num_elements, buffer.dtype);
  device.read(buffer, copy.buffer());
  return copy;
}

void expect_equal_units(const Communicator& on_gpu, const Communicator& on_cpu) {
  const std::vector<UnitState> gpu = on_gpu.unit_states();
  const std::vector<UnitState> cpu = on_cpu.unit_states();
  ASSERT_EQ(gpu.size(), cpu.size());
  for (size_t u = 0; u < gpu.size(); ++u) {
    EXPECT_EQ(gpu[u].key, cpu[u].key);
    EXPECT_EQ(gpu[u].step, cpu[u].step);
    EXPECT_EQ(gpu[u].scale, cpu[u].scale);
    EXPECT_TRUE(copy_of(on_gpu.device(), gpu[u].residual).bytes() == copy_of(on_cpu.device(), cpu[u].residual).bytes())
        << gpu[u].key.name;
    EXPECT_TRUE(copy_of(on_gpu.device(), gpu[u].result_residual).bytes() ==
                copy_of(on_cpu.device(), cpu[u].result_residual).bytes())
        << gpu[u].key.name;
  }
}

void expect_equal_state(GpuWorld& world, World& cpu) {
  for (int rank = 0; rank < world.size(); ++rank) {
    SCOPED_TRACE("rank " + std::to_string(rank));
    expect_equal_stats(*world.ranks[rank].communicator, *cpu.ranks[rank]);
    expect_equal_units(*world.ranks[rank].communicator, *cpu.ranks[rank]);
  }
}

// What is done to both communicators of every rank, without waiting for what is under way.
template <typename Action>
void on_both(GpuWorld& world, World& cpu, const Action& action) {
  for (int rank = 0; rank < world.size(); ++rank) {
    action(*world.ranks[rank].communicator);
    action(*cpu.ranks[rank]);
  }
}

TEST(CommunicatorOnGpu, StateAndStatisticsAreThoseOfTheCpu) {
  for (const char* nodes : {"2x2", "3x1"}) {
    const NodeMap map = NodeMap::parse(nodes, nodes == std::string("2x2") ? 4 : 3);
    GpuWorld world(map, lossy_options());
    World cpu(map, lossy_options());
    const auto step = [&](uint64_t seed) {
      expect_results_of_cpu(world, cpu, calls_of_one_step(world.size(), seed), /*in_flight=*/8);
    };
    step(100);
    expect_equal_state(world, cpu);
    on_both(world, cpu, [](Communicator& communicator) { communicator.count_skipped_step(); });
    step(200);
    on_both(world, cpu, [](Communicator& communicator) { communicator.count_step(); });
    step(300);
    on_both(world, cpu, [](Communicator& communicator) {
      communicator.reset_stats();
      communicator.count_skipped_step();
      communicator.scale_residuals(3);
    });
    expect_equal_state(world, cpu);
    step(400);
    expect_equal_state(world, cpu);
    on_both(world, cpu, [](Communicator& communicator) { communicator.clear_units(); });
    step(500);
    expect_equal_state(world, cpu);
  }
}

// Nothing waits for what is under way, and it counts as if all had been done in this order.
TEST(CommunicatorOnGpu, StateChangesBetweenCollectivesThatAreUnderWay) {
  GpuWorld world(NodeMap::parse("2x2", 4), lossy_options());
  World cpu(world.map, lossy_options());
  const std::vector<Call> calls = calls_of_one_step(world.size(), 100);
  test::run_ranks_well(world.size(), [&](int r) {
    const GpuWorld::Rank& rank = world.ranks[r];
    for (Lane lane : {Lane::kEncode, Lane::kDecode}) {
      rank.gpu->slow_down(rank.gpu->lane(lane), std::chrono::microseconds(300));
    }
    std::vector<test::CallOnGpu> prepared = prepare(world, calls, r);
    const auto change = [](Communicator& communicator, int number) {
      if (number == 0) {
        communicator.scale_residuals(0.5);
        communicator.count_skipped_step();
      } else {
        communicator.count_step();
        communicator.clear_units();
      }
    };
    for (const int number : {0, 1, 2}) {
      run(rank, prepared, calls.size());
      change(*rank.communicator, number);
    }
    const test::Results results = results_of(prepared);
    test::Results expected;
    for (const int number : {0, 1, 2}) {
      expected = run_on_cpu(*cpu.ranks[r], calls, r);
      change(*cpu.ranks[r], number);
    }
    for (size_t i = 0; i < calls.size(); ++i) {
      EXPECT_TRUE(results[i].bytes() == expected[i].bytes()) << "rank " << r << ", call " << i;
    }
  });
  expect_equal_state(world, cpu);
}

TEST(CommunicatorOnGpu, AnotherScaleInEachStep) {
  GpuWorld world(NodeMap::parse("2x1", 2), lossy_options());
  World cpu(world.map, lossy_options());
  std::vector<Call> calls;
  for (const double scale : {1.0, 0.125, 3.0, 0.0, -1.0}) {
    calls.push_back({Collective::kReduceScatter, 4000, kFloat32, scale, "unit", nullptr, calls.size()});
    calls.push_back({Collective::kAllReduce, 4001, DataType::kFloat16, scale, "unit", nullptr, calls.size()});
  }
  expect_results_of_cpu(world, cpu, calls, calls.size());
  expect_equal_state(world, cpu);
}

TEST(CommunicatorOnGpu, AUnitIsLoadedFromTheHost) {
  GpuWorld world(NodeMap::parse("2x2", 4), lossy_options());
  World cpu(world.map, lossy_options());
  const std::vector<Call> calls = calls_of_one_step(world.size(), 100);
  expect_results_of_cpu(world, cpu, calls, 2);
  GpuWorld restored(world.map, lossy_options());
  for (int rank = 0; rank < world.size(); ++rank) {
    for (UnitState state : cpu.ranks[rank]->unit_states()) {
      restored.ranks[rank].communicator->load_unit(state);
      state.residual.num_elements += 1;
      EXPECT_THROW(restored.ranks[rank].communicator->load_unit(state), Error);
    }
    expect_equal_units(*restored.ranks[rank].communicator, *cpu.ranks[rank]);
  }
  expect_results_of_cpu(restored, cpu, calls_of_one_step(world.size(), 200), 100);
  for (int rank = 0; rank < world.size(); ++rank) {
    expect_equal_units(*restored.ranks[rank].communicator, *cpu.ranks[rank]);
  }
}

TEST(CommunicatorOnGpu, NonFiniteValuesAreCountedOnTheDevice) {
  GpuWorld world(NodeMap::parse("2x1", 2), lossy_options());
  World cpu(world.map, lossy_options());
  std::vector<double> values = test::random_values(2 * 4096, 1);
  values[4096 + 77] = std::nan("");
  values[5] = INFINITY;
  test::run_ranks_well(2, [&](int r) {
    const Array gradient(values, kFloat32);
    const GpuWorld::Rank& rank = world.ranks[r];
    const DeviceArray on_gpu(*rank.gpu, gradient);
    const DeviceArray shard(*rank.gpu, 4096, kFloat32);
    Array expected(4096, kFloat32);
    const UnitKey key{"unit", 2 * 4096, kFloat32};
    rank.communicator->reduce_scatter(on_gpu.buffer(), shard.buffer(), 1, key, nullptr, rank.stream);
    cpu.ranks[r]->reduce_scatter(gradient.view(), expected.buffer(), 1, key, nullptr);
    const std::vector<double> sum = shard.read().values();
    for (size_t i = 0; i < sum.size(); ++i) {  // which NaN it is may differ
      ASSERT_TRUE(sum[i] == expected.values()[i] || (std::isnan(sum[i]) && std::isnan(expected.values()[i]))) << i;
    }
  });
  EXPECT_EQ(world.ranks[0].communicator->stats().codec.non_finite_blocks, 1);
  expect_equal_state(world, cpu);
}

// All buffers that a collective reads and writes are the caller's again behind its event, and scratch memory outlives
// the communicator for as long as work uses it.
TEST(CommunicatorOnGpu, ItMayGoWhileItsWorkIsUnderWay) {
  GpuWorld world(NodeMap::parse("2x2", 4), lossy_options());
  World cpu(world.map, lossy_options());
  const std::vector<Call> calls = calls_of_one_step(world.size(), 100);
  test::run_ranks_well(world.size(), [&](int r) {
    GpuWorld::Rank& rank = world.ranks[r];
    rank.gpu->slow_down(rank.gpu->lane(Lane::kEncode), std::chrono::microseconds(500));
    std::vector<test::CallOnGpu> prepared = prepare(world, calls, r);
    run(rank, prepared, 3);
    rank.communicator.reset();
    const test::Results expected = run_on_cpu(*cpu.ranks[r], calls, r);
    const test::Results results = results_of(prepared);
    for (size_t i = 0; i < calls.size(); ++i) {
      EXPECT_TRUE(results[i].bytes() == expected[i].bytes()) << "rank " << r << ", call " << i;
    }
  });
}

// Each rank's chunk of its own input, and its own place in what is gathered.
TEST_P(GpuOnEveryMap, CollectivesInPlace) {
  GpuWorld world(GetParam(), lossy_options());
  World cpu(GetParam(), lossy_options());
  for (const DataType dtype : {kFloat32, DataType::kBFloat16}) {
    const std::vector<Array> inputs = test::random_inputs(world.size(), 2100, dtype);
    test::run_ranks_well(world.size(), [&](int r) {
      const GpuWorld::Rank& rank = world.ranks[r];
      const UnitKey key{"unit", 2100 * world.size(), dtype};
      const DeviceArray on_gpu(*rank.gpu, inputs[r]);
      const Buffer data = on_gpu.buffer();
      rank.gpu->wait(rank.communicator->reduce_scatter(data, data.part(r, 2100), 0.5, key, nullptr, rank.stream),
                     rank.stream);
      rank.communicator->all_gather(data.part(r, 2100), data, rank.stream);
      Array expected = inputs[r];
      const Buffer on_cpu = expected.buffer();
      cpu.ranks[r]->reduce_scatter(on_cpu, on_cpu.part(r, 2100), 0.5, key, nullptr);
      cpu.ranks[r]->all_gather(on_cpu.part(r, 2100), on_cpu);
      EXPECT_TRUE(on_gpu.read().bytes() == expected.bytes()) << "rank " << r << ", " << to_string(dtype);
    });
  }
}

// From two streams of the caller's, of which neither waits for the other.
TEST(CommunicatorOnGpu, CallersMayUseSeveralStreams) {
  GpuWorld world(NodeMap::parse("2x2", 4), lossy_options());
  World cpu(world.map, lossy_options());
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
    const test::Results expected = run_on_cpu(*cpu.ranks[r], calls, r);
    const test::Results results = results_of(prepared);
    for (size_t i = 0; i < calls.size(); ++i) {
      EXPECT_TRUE(results[i].bytes() == expected[i].bytes()) << "rank " << r << ", call " << i;
    }
  });
}

TEST(CommunicatorOnGpu, WithoutTiersOfTheirOwnGathersQueueBehindReductions) {
  for (const NodeMap& map : {NodeMap::parse("2x2", 4), NodeMap({0, 1, 0, 1}), NodeMap::parse("2x1", 2)}) {
    GpuWorld world(map, lossy_options(), GpuSettings{.gather_tiers = false});
    World cpu(map, lossy_options());
    expect_results_of_cpu(world, cpu, calls_of_one_step(world.size(), 100), /*in_flight=*/100);
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
    std::deque<test::CallOnGpu> prepared;  // which waits for the GPU
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
    std::deque<test::Mark> marks;
    for (const GpuWorld::Rank& rank : world_.ranks) {
      test::Mark& mark = marks.emplace_back();
      rank.gpu->enqueue(stream(rank), "reach", {}, [&mark] { mark.set(); });
    }
    const bool reached = std::all_of(marks.begin(), marks.end(),
                                     [](test::Mark& mark) { return mark.wait_for(std::chrono::seconds(5)); });
    released_.set();
    for (const GpuWorld::Rank& rank : world_.ranks) {
      rank.gpu->synchronize();
    }
    return reached;
  }

  GpuWorld world_{NodeMap::parse("2x2", 4), lossy_options()};
  test::Mark released_;
};

TEST_F(Overlap, GathersDoNotQueueBehindReductions) {
  const Started reduction = {{Collective::kReduceScatter, 8000, kFloat32}, &GpuWorld::Rank::stream};
  const Started gather = {{Collective::kAllGather, 8000, kFloat32}, &GpuWorld::Rank::other_stream};
  start_while_held(Lane::kEncode, {reduction, reduction, reduction, gather});
  EXPECT_TRUE(all_reach([](const GpuWorld::Rank& rank) { return rank.other_stream; }));
}

// While one of two units stands still in `held`, the other one leaves `reached`.
struct Stages {
  Lane held;
  Lane reached;
};
class OverlapOfStages : public Overlap, public ::testing::WithParamInterface<Stages> {};
INSTANTIATE_TEST_SUITE_P(Lanes, OverlapOfStages,
                         ::testing::Values(Stages{Lane::kEncode, Lane::kIntra}, Stages{Lane::kInter, Lane::kEncode},
                                           Stages{Lane::kDecode, Lane::kInter}));

TEST_P(OverlapOfStages, OfTwoUnits) {
  start_while_held(GetParam().held, {{{Collective::kReduceScatter, 8000, kFloat32}, &GpuWorld::Rank::stream},
                                     {{Collective::kReduceScatter, 4000, kFloat32}, &GpuWorld::Rank::other_stream}});
  EXPECT_TRUE(all_reach([](const GpuWorld::Rank& rank) { return rank.gpu->lane(GetParam().reached); }));
}

TEST(CommunicatorOnGpu, NothingIsAllocatedInASteadyState) {
  GpuWorld world(NodeMap::parse("3x2", 6), lossy_options());
  World cpu(world.map, lossy_options());
  int64_t scratch_bytes = 0;
  for (int step = 0; step < 4; ++step) {
    expect_results_of_cpu(world, cpu, calls_of_one_step(world.size(), 100), /*in_flight=*/3);
    const int64_t bytes = world.ranks[0].communicator->stats().scratch_bytes;
    EXPECT_TRUE(step < 2 || bytes == scratch_bytes);
    scratch_bytes = bytes;
  }
}

TEST(CommunicatorOnGpu, PhasesAreRangesAndOperationsOfANodeAreGroups) {
  GpuWorld world(NodeMap::parse("3x2", 6), lossy_options());
  test::run_ranks_well(world.size(), [&](int r) {
    const GpuWorld::Rank& rank = world.ranks[r];
    std::vector<test::CallOnGpu> calls =
        prepare(world, {{Collective::kAllReduce, 600, kFloat32}, {Collective::kAllGather, 600, kFloat32}}, r);
    run(rank, calls, 1);
    rank.gpu->synchronize();
  });
  const GpuWorld::Rank& rank = world.ranks[0];
  EXPECT_EQ(rank.gpu->ranges(), (std::vector<std::string>{"intra reduce-scatter", "encode", "inter exchange", "decode",
                                                          "encode result", "inter all-gather", "intra all-gather",
                                                          "decode result", "inter all-gather", "intra all-gather"}));
  EXPECT_EQ(rank.intra->groups(), (std::vector<int>{3}));
  EXPECT_EQ(rank.gather_intra->groups(), (std::vector<int>{3, 3}));
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

TEST(CommunicatorOnGpu, ASingleTierIsForTheCpu) {
  Options options = lossy_options();
  options.tiers = "flat";
  EXPECT_THROW(GpuWorld(NodeMap::parse("2x1", 2), options), OptionError);
}

// Where the node's sums are taken in the type of the gradient: what it may add to the bound of docs/algorithms.md.
double bound_like_nccl(const NodeMap& map, DataType dtype, double scale, double sum, double magnitudes) {
  const double roundings = map.ranks_per_node() * test::unit_roundoff(dtype) * 1.1;
  const double divided = dtype == DataType::kFloat16 ? map.world_size() * map.ranks_per_node() * 0x1p-23 : 0;
  return test::exact_path_bound(map, dtype, scale, sum, magnitudes) +
         std::fabs(scale) * (roundings * magnitudes + divided);
}

TEST_P(GpuOnEveryMap, SumsLikeNcclStayWithinTheirBound) {
  GpuWorld world(GetParam(), exact_options(), GpuSettings{.sums = Sums::kLikeNccl});
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
        const double bound = bound_like_nccl(world.map, dtype, 0.5, sum[whole], magnitudes[whole]);
        ASSERT_NEAR(shard[i], 0.5 * sum[whole], bound) << to_string(dtype);
        ASSERT_NEAR(reduced[whole], 0.5 * sum[whole], bound) << to_string(dtype);
      }
    }
  }
}

TEST(CommunicatorOnGpu, AverageOfLargeFloat16ValuesDoesNotOverflowLikeNccl) {
  for (const Options& options : {exact_options(), lossy_options()}) {
    GpuWorld world(NodeMap::parse("2x3", 6), options, GpuSettings{.sums = Sums::kLikeNccl});
    test::run_ranks_well(world.size(), [&](int r) {
      const GpuWorld::Rank& rank = world.ranks[r];
      const DeviceArray data(*rank.gpu, Array(std::vector<double>(6 * 64, 60000), DataType::kFloat16));
      rank.communicator->all_reduce(data.buffer(), 1.0 / 6,
                                    {"unit", 6 * 64, DataType::kFloat16, Collective::kAllReduce}, nullptr, rank.stream);
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
