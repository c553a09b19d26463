// What a communicator on an emulated GPU enqueues on which lane: what overlaps, and what is told of it.
#include <gtest/gtest.h>

#include <algorithm>
#include <chrono>
#include <deque>
#include <functional>
#include <string>
#include <vector>

#include "isthmus/communicator.h"
#include "isthmus/error.h"
#include "tests/cpp/support/gpu_calls.h"
#include "tests/cpp/support/gpu_world.h"

namespace isthmus {
namespace {

using test::Call;
using test::calls_of_one_step;
using test::expect_results_of_cpu;
using test::GpuWorld;
using test::lossy_options;
using test::World;

constexpr DataType kFloat32 = DataType::kFloat32;

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

TEST_F(Overlap, AReduceScatterBeginsWhenItsInputIsThere) {
  const Call call = {Collective::kReduceScatter, 8000, kFloat32};
  World cpu(world_.map, lossy_options());
  std::deque<test::CallOnGpu> prepared;
  for (int r = 0; r < world_.size(); ++r) {
    prepared.emplace_back(*world_.ranks[r].gpu, call, r, world_.size());
  }
  for (const GpuWorld::Rank& rank : world_.ranks) {
    rank.gpu->enqueue(rank.stream, "hold", {}, [this] { released_.wait(); });
  }
  for (int r = 0; r < world_.size(); ++r) {
    const GpuWorld::Rank& rank = world_.ranks[r];
    prepared[r].start(*rank.communicator, rank.stream, rank.other_stream);
    prepared[r].finish(rank.stream);
  }
  EXPECT_TRUE(all_reach([](const GpuWorld::Rank& rank) { return rank.gpu->lane(Lane::kInter); }));
  test::run_ranks_well(world_.size(), [&](int r) {
    EXPECT_TRUE(prepared[r].result().bytes() == test::run_on_cpu(*cpu.ranks[r], {call}, r)[0].bytes()) << "rank " << r;
  });
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
  EXPECT_EQ(
      rank.gpu->ranges(),
      (std::vector<std::string>{"intra reduce-scatter", "encode", "inter exchange", "intra reduce-scatter", "decode",
                                "encode result", "inter all-gather", "intra all-gather", "intra all-gather",
                                "decode result", "inter all-gather", "intra all-gather", "intra all-gather"}));
  EXPECT_EQ(rank.intra->groups(), (std::vector<int>{2, 1})) << "those of other nodes, then the own one";
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
}  // namespace isthmus
