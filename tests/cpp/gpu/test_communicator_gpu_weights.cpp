// Gathers of weights as differences on emulated GPUs: lanes, graphs, and the host's wait. What they do as on the CPU is
// the subject of tests/cpp/communicator/test_weights.cpp.
#include <gtest/gtest.h>

#include <atomic>
#include <chrono>
#include <cstddef>
#include <cstring>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "isthmus/communicator.h"
#include "isthmus/error.h"
#include "tests/cpp/support/gpu_world.h"
#include "tests/cpp/support/hooked_transport.h"
#include "tests/cpp/support/weights.h"

namespace isthmus::test {
namespace {

// One gather on one rank, whose input is made on the caller's stream.
class GatherOnGpu {
 public:
  GatherOnGpu(GpuWorld& world, int rank, const Array& whole, const std::string& unit = "unit")
      : rank_(world.ranks[rank]),
        key_(key_of(unit, whole.view())),
        expected_(whole),
        source_(*rank_.gpu, whole.view().num_elements / world.size(), whole.view().dtype),
        shard_(*rank_.gpu, whole.view().num_elements / world.size(), whole.view().dtype),
        gathered_(*rank_.gpu, whole.view().num_elements, whole.view().dtype) {
    rank_.gpu->write(whole.view().part(rank, source_.buffer().num_elements), source_.buffer());
  }

  void begin() {
    rank_.gpu->convert(source_.buffer(), shard_.buffer(), rank_.stream);
    gather_ = rank_.communicator->gather_weights(shard_.buffer(), gathered_.buffer(), key_, rank_.stream);
  }
  void finish() {
    rank_.gpu->wait(gather_->finish(), rank_.stream);
    rank_.gpu->clear(shard_.buffer(), rank_.stream);
  }
  void give_up() { gather_ = nullptr; }
  void start() {
    begin();
    finish();
  }
  // Waits for the GPU.
  bool is_right() const { return is(expected_); }
  bool is(const Array& expected) const { return gathered_.get().bytes() == expected.bytes(); }

 private:
  GpuWorld::Rank& rank_;
  UnitKey key_;
  Array expected_;
  DeviceArray source_;
  DeviceArray shard_;
  DeviceArray gathered_;
  WeightGatherPtr gather_;
};

void gather(GpuWorld& world, const Array& whole) {
  run_ranks_well(world.size(), [&](int rank) {
    GatherOnGpu gather(world, rank, whole);
    gather.start();
    EXPECT_TRUE(gather.is_right()) << "rank " << rank;
  });
}

// Two nodes of one rank each, which have gathered these weights once.
class TwoNodes : public ::testing::Test {
 protected:
  TwoNodes() { gather(world_, weights_.array()); }
  // A gather on one rank, begun or not.
  GatherOnGpu& add(int rank) { return gathers_.emplace_back(world_, rank, weights_.array()); }

  GpuWorld world_{NodeMap::parse("2x1", 2), delta_options()};
  Weights weights_{4000, DataType::kBFloat16};
  std::deque<GatherOnGpu> gathers_;
};

// The host does not wait for decodings, and goes on to the next units.
TEST(GpuWeights, ManyUnitsAreUnderWay) {
  GpuWorld world(NodeMap::parse("2x2", 4), delta_options(), GpuSettings{.seed = 7});
  constexpr int kSteps = 8;
  const std::vector<std::string> units = {"a", "b", "c"};
  std::map<std::string, std::vector<Array>> values;
  for (const std::string& unit : units) {
    Weights weights(4000 * static_cast<int64_t>(unit[0] - '`'), DataType::kBFloat16);
    for (int step = 0; step < kSteps; ++step) {
      weights.move(step == 6 ? 10 : 1e-3);
      values[unit].push_back(weights.array());
    }
  }
  run_ranks_well(4, [&](int rank) {
    std::deque<GatherOnGpu> gathers;
    for (int step = 0; step < kSteps; ++step) {
      for (int pass = 0; pass < 2; ++pass) {
        for (const std::string& unit : units) {
          gathers.emplace_back(world, rank, values[unit][step], unit);
        }
      }
    }
    for (GatherOnGpu& gather : gathers) {
      gather.start();
    }
    for (const GatherOnGpu& gather : gathers) {
      EXPECT_TRUE(gather.is_right()) << "rank " << rank;
    }
  });
  EXPECT_EQ(world.ranks[0].communicator->stats().weights.gathers, 2 * kSteps * 3);
}

// Between the halves of one unit are those of others, and a reduction.
TEST(GpuWeights, HalvesAreFinishedInAnyOrder) {
  GpuWorld world(NodeMap::parse("2x2", 4), delta_options(), GpuSettings{.seed = 3});
  constexpr int kSteps = 6;
  const std::vector<std::string> units = {"a", "b", "c", "d"};
  const std::vector<std::vector<size_t>> orders = {{0, 1, 2, 3}, {3, 2, 1, 0}, {2, 0, 3, 1}};
  std::vector<std::vector<Array>> values(kSteps);
  std::deque<Weights> weights;
  for (size_t unit = 0; unit < units.size(); ++unit) {
    weights.emplace_back(4000 * (1 + static_cast<int64_t>(unit)), DataType::kBFloat16);
  }
  for (int step = 0; step < kSteps; ++step) {
    for (Weights& of_unit : weights) {
      of_unit.move(step % 2 == 0 ? 1e-3 : 0);
      values[step].push_back(of_unit.array());
    }
  }
  run_ranks_well(4, [&](int number) {
    const GpuWorld::Rank& rank = world.ranks[number];
    std::deque<GatherOnGpu> gathers;
    DeviceArray gradient(*rank.gpu, 4000, DataType::kFloat32);
    rank.gpu->clear(gradient.buffer(), rank.stream);
    for (int step = 0; step < kSteps; ++step) {
      const size_t first = gathers.size();
      for (size_t unit = 0; unit < units.size(); ++unit) {
        gathers.emplace_back(world, number, values[step][unit], units[unit]).begin();
      }
      const UnitKey key{"gradient", 4000, DataType::kFloat32, Collective::kReduceScatter};
      const EventPtr reduced = rank.communicator->reduce_scatter(
          gradient.buffer(), gradient.buffer().part(number, 1000), {key}, rank.stream);
      rank.gpu->wait(reduced, rank.stream);
      for (const size_t unit : orders[static_cast<size_t>(step) % orders.size()]) {
        gathers[first + unit].finish();
      }
    }
    for (const GatherOnGpu& gather : gathers) {
      EXPECT_TRUE(gather.is_right()) << "rank " << number;
    }
  });
  EXPECT_EQ(world.ranks[0].communicator->stats().weights.gathers, kSteps * 4);
}

// Nobody waits for what nobody uses: then it has no second half, and the next gather compares with the one before it.
TEST(GpuWeights, AGatherThatIsGivenUpChangesNothing) {
  GpuWorld world(NodeMap::parse("2x2", 4), delta_options());
  Weights weights(8000, DataType::kBFloat16);
  gather(world, weights.array());
  weights.move(1e-3);
  const Array unused = weights.array();
  weights.move(1e-3);
  run_ranks_well(4, [&](int number) {
    std::deque<GatherOnGpu> gathers;
    for (int times = 0; times < 5; ++times) {
      gathers.emplace_back(world, number, unused).begin();
      gathers.back().give_up();
    }
    GatherOnGpu used(world, number, weights.array());
    used.start();
    EXPECT_TRUE(used.is_right()) << "rank " << number;
  });
  const Stats stats = world.ranks[0].communicator->stats();
  EXPECT_EQ(stats.weights.gathers, 2);
  EXPECT_EQ(stats.weights.whole, (std::map<Reason, int64_t>{{Reason::kFirstGather, 1}}));
}

TEST_F(TwoNodes, AGatherIsNotFinishedAfterALaterOneOfItsUnit) {
  add(0);
  add(1);
  run_ranks_well(2, [&](int number) {
    gathers_[number].begin();
    GatherOnGpu late(world_, number, weights_.array());
    late.start();
    EXPECT_TRUE(late.is_right());
  });
  const Outcome outcome = run_ranks(1, [&](int number) { gathers_[number].finish(); })[0];
  EXPECT_TRUE(outcome.threw<Error>());
  EXPECT_NE(outcome.text.find("unit \"unit\": gather 1 of its weights is waited for too late"), std::string::npos)
      << outcome.text;
}

// A rank begins alone: nothing in the first half waits for its peers, whose first halves may come after other calls.
TEST_F(TwoNodes, TheFirstHalfDoesNotWait) {
  add(0).begin();  // in one thread
  add(1).begin();
  run_ranks_well(2, [&](int number) { gathers_[number].finish(); });
  EXPECT_TRUE(gathers_[0].is_right() && gathers_[1].is_right());
}

// The packets of the others wait for this rank's on their GPUs, until whoever watches them aborts.
TEST_F(TwoNodes, ARankThatNeverWaitsFailsTheOthers) {
  weights_.move(1e-3);
  add(0).begin();
  add(1).begin();
  gathers_[0].finish();
  world_.ranks[0].communicator->abort();
  const Outcome outcome = run_ranks(1, [&](int) {
    gathers_[0].is_right();
    world_.ranks[0].communicator->throw_if_faulted();
  })[0];
  EXPECT_TRUE(outcome.threw<TransportError>()) << outcome.text;
}

// The Work of a gather may live longer.
TEST(GpuWeights, TheCommunicatorMayGoBetweenTheHalves) {
  WeightGatherPtr gather;
  {
    GpuWorld world(NodeMap::parse("2x1", 2), delta_options());
    std::deque<DeviceArray> arrays;
    for (GpuWorld::Rank& rank : world.ranks) {
      Buffer there = arrays.emplace_back(*rank.gpu, 4000, DataType::kBFloat16).buffer();
      rank.gpu->clear(there, rank.stream);
      gather = rank.communicator->gather_weights(there.part(0, 2000), there, key_of("unit", there), rank.stream);
    }
  }
  EXPECT_EQ(gather.use_count(), 1);
}

// The host would wait for gradients, which wait for the backward pass.
TEST(GpuWeights, TheyDoNotQueueBehindReductions) {
  GpuWorld world(NodeMap::parse("2x2", 4), delta_options());
  Weights weights(8000, DataType::kBFloat16);
  gather(world, weights.array());
  Mark released;
  for (const GpuWorld::Rank& rank : world.ranks) {
    for (const Lane lane : {Lane::kIntra, Lane::kEncode, Lane::kInter, Lane::kDecode}) {
      rank.gpu->enqueue(rank.gpu->lane(lane), "hold", {}, [&] { released.wait(); });
    }
  }
  weights.move(1e-3);
  std::deque<Mark> gathered(4);
  run_ranks_well(4, [&](int number) {
    const GpuWorld::Rank& rank = world.ranks[number];
    const ConstBuffer whole = weights.array().view();
    DeviceArray there(*rank.gpu, whole.num_elements, whole.dtype);  // of no defined contents
    const WeightGatherPtr gather = rank.communicator->gather_weights(there.buffer().part(number, 2000), there.buffer(),
                                                                     key_of("unit", whole), rank.stream);
    rank.gpu->wait(gather->finish(), rank.stream);
    rank.gpu->enqueue(rank.stream, "reach", {}, [&] { gathered[number].set(); });
    EXPECT_TRUE(gathered[number].wait_for(std::chrono::seconds(5)));
  });
  released.set();
}

// Until the host sees the fault nobody computes with the weights before.
TEST(GpuWeights, NaNIsGatheredWhereAPacketIsRefused) {
  std::atomic<bool> damages = false;
  const auto damage = after("all_gather_uneven", [&](Buffer out) {
    out.as<std::byte>()[out.num_elements / 2] ^= damages ? std::byte{4} : std::byte{0};
  });
  GpuWorld world(NodeMap::parse("2x2", 4), delta_options(),
                 GpuSettings{.wrap = hook(1, &Tiers::gather_inter, nullptr, damage)});
  Weights weights(8000, DataType::kBFloat16);
  gather(world, weights.array());
  weights.move(1e-3);
  damages = true;
  Array spoilt = weights.array();
  const Buffer of_rank_3 = spoilt.buffer().part(3, 2000);
  std::memset(of_rank_3.data, 0xff, static_cast<size_t>(of_rank_3.bytes()));
  run_ranks_well(4, [&](int rank) {
    GatherOnGpu gather(world, rank, weights.array());
    gather.start();
    EXPECT_TRUE(rank < 2 ? gather.is(spoilt) : gather.is_right()) << "rank " << rank;
  });
  EXPECT_THROW(world.ranks[1].communicator->throw_if_faulted(), PacketError);
}

TEST_F(TwoNodes, InAGraphTheyCrossWhole) {
  run_ranks_well(2, [&](int number) {
    GpuWorld::Rank& rank = world_.ranks[number];
    GatherOnGpu captured(world_, number, weights_.array());
    rank.gpu->begin_capture(rank.stream);
    captured.start();
    const auto graph = rank.gpu->end_capture(rank.stream);
    for (int replay = 0; replay < 2; ++replay) {
      rank.gpu->replay(graph, rank.stream);
      EXPECT_TRUE(captured.is_right());
    }
  });
  EXPECT_EQ(world_.ranks[0].communicator->stats().weights.whole,
            (std::map<Reason, int64_t>{{Reason::kInGraph, 1}, {Reason::kFirstGather, 1}}));
  weights_.move(1e-3);
  gather(world_, weights_.array());  // differs from what crossed before the graph
  EXPECT_EQ(world_.ranks[0].communicator->stats().weights.whole.size(), 2);
}

// One rank gathers, after prepare(), and another thread aborts its communicator once it waits for the headers.
Outcome gather_and_abort(GpuWorld& world, const std::function<void()>& prepare) {
  std::thread aborts([&] {
    while (world.ranks[0].communicator->phase() != isthmus::Phase::kInterHeaders) {
      std::this_thread::yield();
    }
    world.ranks[0].communicator->abort();
  });
  const auto outcomes = run_ranks(1, [&](int rank) {
    GatherOnGpu gather(world, rank, Weights(4000, DataType::kBFloat16).array());
    prepare();
    gather.start();
  });
  aborts.join();
  return outcomes[0];
}

TEST(GpuWeights, AnAbortEndsTheWaitForAPeerThatNeverComes) {
  GpuWorld world(NodeMap::parse("2x1", 2), delta_options());
  const Outcome outcome = gather_and_abort(world, [] {});
  EXPECT_TRUE(outcome.threw<TransportError>()) << outcome.text;
}

// The lane stands still until the host has returned.
TEST(GpuWeights, AnAbortEndsTheWaitForAGpuThatDoesNotAnswer) {
  GpuWorld world(NodeMap::parse("2x1", 2), delta_options());
  Mark released;
  const Outcome outcome = gather_and_abort(world, [&] {
    EmulatedGpu& gpu = *world.ranks[0].gpu;
    gpu.enqueue(gpu.lane(Lane::kGatherInter), "hold", {}, [&] { released.wait(); });
  });
  released.set();
  EXPECT_TRUE(outcome.threw<TransportError>()) << outcome.text;
  EXPECT_NE(outcome.text.find("abort() was called"), std::string::npos) << outcome.text;
}

}  // namespace
}  // namespace isthmus::test
