// Collectives captured into a graph on emulated GPUs: every replay is a step.
#include <gtest/gtest.h>

#include <memory>
#include <string>
#include <vector>

#include "isthmus/communicator.h"
#include "isthmus/error.h"
#include "tests/cpp/support/error_of.h"
#include "tests/cpp/support/gpu_calls.h"
#include "tests/cpp/support/gpu_world.h"

namespace isthmus::test {
namespace {

// The same units in every step: compressed ones, of which one comes twice, a plain one, and gathers.
std::vector<Call> calls_of_step(int64_t world_size, uint64_t seed) {
  std::vector<Call> calls;
  for (const char* unit : {"a", "b", "a"}) {
    calls.push_back({Collective::kReduceScatter, 2100 * world_size, DataType::kBFloat16, 0.5, unit, {}, ++seed});
    calls.push_back({Collective::kAllGather, 900 * world_size, DataType::kBFloat16, 1, "", {}, ++seed});
    calls.push_back({Collective::kAllReduce, 1500 * world_size + 1, kFloat32, 0.25, unit, {}, ++seed});
  }
  calls.push_back({Collective::kReduceScatter, 700 * world_size, kFloat32, 1, "plain", Reason::kNotPrepared, ++seed});
  return calls;
}

// One rank of both worlds, step after step.
class Steps {
 public:
  Steps(GpuWorld& world, World& cpu, int rank)
      : world_(world), rank_(world.ranks[rank]), cpu_(*cpu.ranks[rank]), number_(rank) {}

  void run_eagerly() {
    const std::vector<Call> calls = next_calls();
    std::vector<CallOnGpu> prepared = prepare(world_, calls, number_);
    run(rank_, prepared, 4);
    expect_results_of_cpu(prepared, calls);
  }

  struct Captured {
    std::vector<CallOnGpu> calls;
    std::shared_ptr<EmulatedGraph> graph;
  };
  // The calls of one step, or only some of them.
  Captured capture(size_t num_calls, size_t in_flight) {
    std::vector<Call> calls = calls_of_step(world_.size(), 0);
    calls.resize(num_calls);
    Captured captured = {prepare(world_, calls, number_), nullptr};
    rank_.gpu->begin_capture(rank_.stream);
    run(rank_, captured.calls, in_flight);
    captured.graph = rank_.gpu->end_capture(rank_.stream);
    return captured;
  }

  Captured capture_with_own_inputs() {
    const std::vector<Call> calls = calls_of_step(world_.size(), 0);
    Captured captured = {prepare(world_, calls, number_), nullptr};
    rank_.gpu->begin_capture(rank_.stream);
    rank_.gpu->order(rank_.stream, rank_.other_stream);
    for (size_t i = 0; i < calls.size(); ++i) {
      captured.calls[i].start(*rank_.communicator, rank_.stream,
                              calls[i].gathers() ? rank_.stream : rank_.other_stream);
      captured.calls[i].finish(rank_.stream);
    }
    captured.graph = rank_.gpu->end_capture(rank_.stream);
    return captured;
  }

  // With inputs of its own.
  void replay(Captured& captured) {
    std::vector<Call> calls = next_calls();
    calls.resize(captured.calls.size());
    for (size_t i = 0; i < calls.size(); ++i) {
      captured.calls[i].write(calls[i].input(number_, world_.size()));
    }
    rank_.gpu->replay(captured.graph, rank_.stream);
    expect_results_of_cpu(captured.calls, calls);
  }

  void expect_units_of_cpu() { expect_equal_units(*rank_.communicator, cpu_); }

 private:
  std::vector<Call> next_calls() { return calls_of_step(world_.size(), 100 * ++step_); }

  void expect_results_of_cpu(const std::vector<CallOnGpu>& calls, const std::vector<Call>& on_cpu) {
    SCOPED_TRACE(step_);
    expect_results(calls, on_cpu, run_on_cpu(cpu_, on_cpu, number_), number_);
  }

  GpuWorld& world_;
  const GpuWorld::Rank& rank_;
  KeyedCommunicator& cpu_;
  int number_;
  uint64_t step_ = 0;
};

class GraphOnEveryMap : public ::testing::TestWithParam<NodeMap> {};
INSTANTIATE_TEST_SUITE_P(Maps, GraphOnEveryMap,
                         ::testing::Values(NodeMap::parse("1x2", 2), NodeMap::parse("3x1", 3), NodeMap::parse("2x2", 4),
                                           NodeMap({0, 1, 0, 1})),
                         name_of_map);

TEST_P(GraphOnEveryMap, ReplaysAreStepsAmongOthers) {
  for (const Options& options : every_options()) {
    GpuWorld world(GetParam(), options);
    World cpu(GetParam(), options);
    const size_t all = calls_of_step(world.size(), 0).size();
    run_ranks_well(world.size(), [&](int rank) {
      Steps steps(world, cpu, rank);
      steps.run_eagerly();
      Steps::Captured step = steps.capture(all, 4);
      Steps::Captured part = steps.capture(3, 100);
      steps.replay(step);
      steps.replay(step);
      steps.run_eagerly();
      steps.replay(part);
      steps.replay(step);
      steps.replay(part);
      steps.run_eagerly();
      steps.expect_units_of_cpu();
    });
  }
}

// As FSDP2's streams in a capture: all that makes inputs is on one, and the calls are on another.
TEST_P(GraphOnEveryMap, InputsMayHaveAStreamOfTheirOwn) {
  for (const Options& options : every_options()) {
    GpuWorld world(GetParam(), options);
    World cpu(GetParam(), options);
    run_ranks_well(world.size(), [&](int rank) {
      Steps steps(world, cpu, rank);
      steps.run_eagerly();
      Steps::Captured step = steps.capture_with_own_inputs();
      steps.replay(step);
      steps.run_eagerly();
      steps.replay(step);
      steps.expect_units_of_cpu();
    });
  }
}

class EveryLossyCodecOnGpu : public ::testing::TestWithParam<Options> {};
INSTANTIATE_TEST_SUITE_P(Codecs, EveryLossyCodecOnGpu, ::testing::ValuesIn(every_lossy_options()), name_of_codec);

TEST_P(EveryLossyCodecOnGpu, GathersWithoutTiersOfTheirOwnAreJoinedToo) {
  GpuWorld world(NodeMap::parse("2x2", 4), GetParam(), GpuSettings{.gather_tiers = false});
  World cpu(world.map, GetParam());
  run_ranks_well(world.size(), [&](int rank) {
    Steps steps(world, cpu, rank);
    steps.run_eagerly();
    Steps::Captured step = steps.capture(6, 6);
    steps.replay(step);
    steps.replay(step);
  });
}

// One unit of two ranks.
class UnitInGraph : public ::testing::Test {
 protected:
  static constexpr int64_t kElements = 8000;

  struct Arrays {
    explicit Arrays(const GpuWorld::Rank& rank)
        : gradient(*rank.gpu, Array(random_values(kElements, 5), kFloat32).view()),
          shard(*rank.gpu, kElements / 2, kFloat32) {}
    DeviceArray gradient;
    DeviceArray shard;
  };

  void reduce(size_t rank, double scale = 1) {
    const GpuWorld::Rank& on = world_.ranks[rank];
    on.gpu->wait(on.communicator->reduce_scatter(arrays_[rank].gradient.buffer(), arrays_[rank].shard.buffer(),
                                                 {{"unit", kElements, kFloat32}, scale}, on.stream),
                 on.stream);
  }
  void reduce_on_both(double scale = 1) {
    reduce(0, scale);
    reduce(1, scale);
  }
  void synchronize() {
    world_.ranks[0].gpu->synchronize();
    world_.ranks[1].gpu->synchronize();
  }
  // What a reduction throws while a graph is captured.
  std::string error_in_capture(double scale) {
    gpu_.begin_capture(stream_);
    std::string text = error_of([&] { reduce(0, scale); });
    gpu_.end_capture(stream_);
    return text;
  }

  GpuWorld world_{NodeMap::parse("2x1", 2), options()};
  EmulatedGpu& gpu_ = *world_.ranks[0].gpu;
  const Stream stream_ = world_.ranks[0].stream;
  Arrays arrays_[2] = {Arrays(world_.ranks[0]), Arrays(world_.ranks[1])};

 private:
  static Options options() {
    Options options = lossy_options();
    options.device_timings = true;
    options.max_units = 1;
    return options;
  }
};

// Every replay would begin with zeros.
TEST_F(UnitInGraph, ANewUnitIsRefused) {
  EXPECT_EQ(error_in_capture(1),
            "unit \"unit\" is reduced for the first time while a graph is captured: expected a step before");
  reduce_on_both();
  EXPECT_EQ(error_in_capture(1), "") << "it was left usable";
  synchronize();
}

// Every replay would have the seed of one step.
TEST(GraphOfASingleTier, IsRefused) {
  Options options = flat_options();
  GpuWorld world(NodeMap::parse("2x1", 2), options);
  const GpuWorld::Rank& rank = world.ranks[0];
  const DeviceArray gradient(*rank.gpu, 200, kFloat32);
  const DeviceArray shard(*rank.gpu, 100, kFloat32);
  rank.gpu->begin_capture(rank.stream);
  EXPECT_EQ(
      error_of([&] {
        rank.communicator->reduce_scatter(gradient.buffer(), shard.buffer(), {{"unit", 200, kFloat32}}, rank.stream);
      }),
      "unit \"unit\" is captured into a graph: expected tiers=\"two\", not \"flat\"");
  rank.gpu->end_capture(rank.stream);
}

// Every replay would scale the residual once more.
TEST_F(UnitInGraph, AnotherScaleIsRefused) {
  reduce_on_both(0.5);
  EXPECT_EQ(error_in_capture(0.25),
            "unit \"unit\" is reduced with scale 0.25 while a graph is captured, and was with 0.5 before: expected one "
            "scale");
  EXPECT_EQ(error_in_capture(0.5), "");
  synchronize();
}

// Calls, bytes and seconds are counted where they are enqueued, elements where they are encoded.
TEST_F(UnitInGraph, TheDeviceCountsInEveryReplay) {
  World cpu(world_.map, lossy_options());
  std::shared_ptr<EmulatedGraph> graphs[2];
  reduce_on_both();
  for (size_t r = 0; r < 2; ++r) {
    const GpuWorld::Rank& rank = world_.ranks[r];
    rank.gpu->begin_capture(rank.stream);
    reduce(r);
    graphs[r] = rank.gpu->end_capture(rank.stream);
  }
  for (int replay = 0; replay < 2; ++replay) {
    for (size_t r = 0; r < 2; ++r) {
      world_.ranks[r].gpu->replay(graphs[r], world_.ranks[r].stream);
    }
  }
  synchronize();
  const Array gradient(random_values(kElements, 5), kFloat32);
  for (int step = 0; step < 3; ++step) {
    cpu.reduce_scatter({gradient, gradient}, 1, {});
  }
  const Stats stats = world_.ranks[0].communicator->stats();
  EXPECT_EQ(stats.codec.kept_elements, cpu.ranks[0]->stats().codec.kept_elements);
  EXPECT_EQ(stats.collectives[0].calls, 2);
  EXPECT_EQ(world_.ranks[0].communicator->units().states()[0].step, 3u);
}

// The capture waits for nothing outside it, and what is not captured waits for what was under way before it.
TEST_F(UnitInGraph, ACaptureBetweenCollectivesThatAreUnderWay) {
  gpu_.slow_down(gpu_.lane(Lane::kDecode), std::chrono::microseconds(1000));
  reduce_on_both();
  reduce_on_both();
  gpu_.begin_capture(stream_);
  for (int i = 0; i < 3; ++i) {
    reduce(0);
  }
  gpu_.end_capture(stream_);
  reduce_on_both();
  reduce_on_both();
  synchronize();
}

}  // namespace
}  // namespace isthmus::test
