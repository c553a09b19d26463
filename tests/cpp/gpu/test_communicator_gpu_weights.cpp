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

namespace isthmus {
namespace {

using test::Array;
using test::delta_options;
using test::DeviceArray;
using test::GpuSettings;
using test::GpuWorld;
using test::key_of;
using test::Weights;

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

  void start() {
    rank_.gpu->convert(source_.buffer(), shard_.buffer(), rank_.stream);
    const EventPtr done = rank_.communicator->gather_weights(shard_.buffer(), gathered_.buffer(), key_, rank_.stream);
    rank_.gpu->wait(done, rank_.stream);
    rank_.gpu->clear(shard_.buffer(), rank_.stream);
  }
  // Waits for the GPU.
  bool is_right() const { return is(expected_); }
  bool is(const Array& expected) const { return gathered_.read().bytes() == expected.bytes(); }

 private:
  GpuWorld::Rank& rank_;
  UnitKey key_;
  Array expected_;
  DeviceArray source_;
  DeviceArray shard_;
  DeviceArray gathered_;
};

void gather(GpuWorld& world, const Array& whole) {
  test::run_ranks_well(world.size(), [&](int rank) {
    GatherOnGpu gather(world, rank, whole);
    gather.start();
    EXPECT_TRUE(gather.is_right()) << "rank " << rank;
  });
}

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
  test::run_ranks_well(4, [&](int rank) {
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

// The host would wait for gradients, which wait for the backward pass.
TEST(GpuWeights, TheyDoNotQueueBehindReductions) {
  GpuWorld world(NodeMap::parse("2x2", 4), delta_options());
  Weights weights(8000, DataType::kBFloat16);
  gather(world, weights.array());
  test::Mark released;
  for (const GpuWorld::Rank& rank : world.ranks) {
    for (const Lane lane : {Lane::kIntra, Lane::kEncode, Lane::kInter, Lane::kDecode}) {
      rank.gpu->enqueue(rank.gpu->lane(lane), "hold", {}, [&] { released.wait(); });
    }
  }
  weights.move(1e-3);
  std::deque<test::Mark> gathered(4);
  test::run_ranks_well(4, [&](int number) {
    const GpuWorld::Rank& rank = world.ranks[number];
    const ConstBuffer whole = weights.array().view();
    DeviceArray there(*rank.gpu, whole.num_elements, whole.dtype);  // of no defined contents
    const EventPtr done = rank.communicator->gather_weights(there.buffer().part(number, 2000), there.buffer(),
                                                            key_of("unit", whole), rank.stream);
    rank.gpu->wait(done, rank.stream);
    rank.gpu->enqueue(rank.stream, "reach", {}, [&] { gathered[number].set(); });
    EXPECT_TRUE(gathered[number].wait_for(std::chrono::seconds(5)));
  });
  released.set();
}

// Until the host sees the fault nobody computes with the weights before.
TEST(GpuWeights, NaNIsGatheredWhereAPacketIsRefused) {
  std::atomic<bool> damages = false;
  const auto damage = [&](const std::string& operation, Buffer out) {
    if (operation == "all_gather_uneven" && damages) {
      out.as<std::byte>()[out.num_elements / 2] ^= std::byte{4};
    }
  };
  GpuWorld world(NodeMap::parse("2x2", 4), delta_options(),
                 GpuSettings{.wrap = test::hook(1, &Tiers::gather_inter, nullptr, damage)});
  Weights weights(8000, DataType::kBFloat16);
  gather(world, weights.array());
  weights.move(1e-3);
  damages = true;
  Array spoilt = weights.array();
  const Buffer of_rank_3 = spoilt.buffer().part(3, 2000);
  std::memset(of_rank_3.data, 0xff, static_cast<size_t>(of_rank_3.bytes()));
  test::run_ranks_well(4, [&](int rank) {
    GatherOnGpu gather(world, rank, weights.array());
    gather.start();
    EXPECT_TRUE(rank < 2 ? gather.is(spoilt) : gather.is_right()) << "rank " << rank;
  });
  EXPECT_THROW(world.ranks[1].communicator->throw_if_faulted(), PacketError);
}

TEST(GpuWeights, InAGraphTheyCrossWhole) {
  GpuWorld world(NodeMap::parse("2x1", 2), delta_options());
  Weights weights(4000, DataType::kBFloat16);
  gather(world, weights.array());
  test::run_ranks_well(2, [&](int number) {
    GpuWorld::Rank& rank = world.ranks[number];
    GatherOnGpu captured(world, number, weights.array());
    rank.gpu->begin_capture(rank.stream);
    captured.start();
    const auto graph = rank.gpu->end_capture(rank.stream);
    for (int replay = 0; replay < 2; ++replay) {
      rank.gpu->replay(graph, rank.stream);
      EXPECT_TRUE(captured.is_right());
    }
  });
  EXPECT_EQ(world.ranks[0].communicator->stats().weights.whole,
            (std::map<std::string, int64_t>{{"in a CUDA graph", 1}, {"the first gather", 1}}));
  weights.move(1e-3);
  gather(world, weights.array());  // differs from what crossed before the graph
  EXPECT_EQ(world.ranks[0].communicator->stats().weights.whole.size(), 2);
}

// One rank gathers, after prepare(), and another thread aborts its communicator once it waits for the headers.
test::Outcome gather_and_abort(GpuWorld& world, const std::function<void()>& prepare) {
  std::thread aborts([&] {
    while (world.ranks[0].communicator->phase() != std::string("inter all-gather of headers")) {
      std::this_thread::yield();
    }
    world.ranks[0].communicator->abort();
  });
  const auto outcomes = test::run_ranks(1, [&](int rank) {
    GatherOnGpu gather(world, rank, Weights(4000, DataType::kBFloat16).array());
    prepare();
    gather.start();
  });
  aborts.join();
  return outcomes[0];
}

TEST(GpuWeights, AnAbortEndsTheWaitForAPeerThatNeverComes) {
  GpuWorld world(NodeMap::parse("2x1", 2), delta_options());
  const test::Outcome outcome = gather_and_abort(world, [] {});
  EXPECT_TRUE(outcome.threw<TransportError>()) << outcome.text;
}

// The lane stands still until the host has returned.
TEST(GpuWeights, AnAbortEndsTheWaitForAGpuThatDoesNotAnswer) {
  GpuWorld world(NodeMap::parse("2x1", 2), delta_options());
  test::Mark released;
  const test::Outcome outcome = gather_and_abort(world, [&] {
    test::EmulatedGpu& gpu = *world.ranks[0].gpu;
    gpu.enqueue(gpu.lane(Lane::kGatherInter), "hold", {}, [&] { released.wait(); });
  });
  released.set();
  EXPECT_TRUE(outcome.threw<TransportError>()) << outcome.text;
  EXPECT_NE(outcome.text.find("abort() was called"), std::string::npos) << outcome.text;
}

}  // namespace
}  // namespace isthmus
