// Gathers of weights as differences on emulated GPUs: bits, bytes, what the host waits for, and what goes wrong.
#include <gtest/gtest.h>

#include <atomic>
#include <chrono>
#include <deque>
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

constexpr const char* kOverflow = "packets were longer than the room for them";
constexpr int64_t kHeaderBytes = 64;

int64_t sent_by(Communicator& communicator) {
  return communicator.stats().collectives[static_cast<size_t>(Collective::kAllGather)].inter.sent_bytes;
}

// One gather on one rank, whose input is made on the caller's stream.
class GatherOnGpu {
 public:
  GatherOnGpu(GpuWorld& world, int rank, const Array& whole, const std::string& unit)
      : rank_(world.ranks[rank]),
        key_(key_of(unit, whole.view())),
        expected_(whole),
        shard_(*rank_.gpu, whole.view().num_elements / world.size(), whole.view().dtype),
        gathered_(*rank_.gpu, whole.view().num_elements, whole.view().dtype) {
    const ConstBuffer own = whole.view().part(rank, whole.view().num_elements / world.size());
    rank_.gpu->write(own, shard_.buffer());
  }

  void start() {
    const EventPtr done = rank_.communicator->gather_weights(shard_.buffer(), gathered_.buffer(), key_, rank_.stream);
    rank_.gpu->wait(done, rank_.stream);
  }
  // Waits for the GPU.
  bool is_right() const { return gathered_.read().bytes() == expected_.bytes(); }

 private:
  GpuWorld::Rank& rank_;
  UnitKey key_;
  Array expected_;
  DeviceArray shard_;
  DeviceArray gathered_;
};

// Every rank gathers, and the host waits for its GPU. Returns what each sent along its rail.
std::vector<int64_t> gather(GpuWorld& world, const Array& whole, const std::string& unit = "unit") {
  std::vector<int64_t> sent(static_cast<size_t>(world.size()));
  test::run_ranks_well(world.size(), [&](int rank) {
    Communicator& communicator = *world.ranks[rank].communicator;
    const int64_t before = sent_by(communicator);
    GatherOnGpu gather(world, rank, whole, unit);
    gather.start();
    EXPECT_TRUE(gather.is_right()) << "rank " << rank;
    sent[rank] = sent_by(communicator) - before;
  });
  return sent;
}

WeightStats stats_of(GpuWorld& world, int rank) { return world.ranks[rank].communicator->stats().weights; }

class EveryMapOnGpu : public testing::TestWithParam<NodeMap> {};
INSTANTIATE_TEST_SUITE_P(Maps, EveryMapOnGpu, testing::ValuesIn(test::maps_of_weights()), test::name_of_map);

TEST_P(EveryMapOnGpu, GathersHaveTheBitsOfPlainOnes) {
  GpuWorld world(GetParam(), delta_options());
  for (const DataType dtype : {DataType::kBFloat16, DataType::kFloat16, DataType::kFloat32, DataType::kFloat64}) {
    test::move_and_gather(world.size(), dtype,
                          [&](const Array& whole, const std::string& unit) { gather(world, whole, unit); });
  }
}

// Forward and backward pass: once its order is learned, a step costs packets and a quarter, and a header.
TEST_P(EveryMapOnGpu, AStepCostsPacketsOnceAndWaitsForNothing) {
  GpuWorld world(GetParam(), delta_options());
  const int64_t others = world.map.num_nodes() - 1;
  Weights weights(20000 * world.size(), DataType::kBFloat16);
  for (int step = 0; step < 10; ++step) {
    weights.move(1e-3);
    const std::vector<int64_t> forward = gather(world, weights.array());
    const std::vector<int64_t> backward = gather(world, weights.array());
    for (int rank = 0; step > 5 && rank < world.size(); ++rank) {
      EXPECT_LT(forward[rank], 20000 * others + 1);  // half of the shard
      EXPECT_EQ(backward[rank], kHeaderBytes * others);
    }
  }
  for (int rank = 0; others > 0 && rank < world.size(); ++rank) {
    const WeightStats stats = stats_of(world, rank);
    EXPECT_EQ(stats.gathers, 20);
    EXPECT_EQ(stats.unchanged, 10);
    EXPECT_EQ(stats.whole, (std::map<std::string, int64_t>{}));
    EXPECT_EQ(stats.healed, 0);
    EXPECT_EQ(stats.host_waits, 0);
  }
}

// A learned order, whose packets fit.
void learn(GpuWorld& world, Weights& weights) {
  for (int step = 0; step < 8; ++step) {
    weights.move(1e-3);
    gather(world, weights.array());
    gather(world, weights.array());
  }
}

TEST(GpuWeights, WhatDoesNotFitIsCarriedByTheHost) {
  GpuWorld world(NodeMap::parse("2x2", 4), delta_options());
  Weights weights(20000 * 4, DataType::kBFloat16);
  learn(world, weights);
  weights.move(100);  // loaded weights, say
  const std::vector<int64_t> sent = gather(world, weights.array());
  for (int rank = 0; rank < 4; ++rank) {
    EXPECT_EQ(stats_of(world, rank).whole, (std::map<std::string, int64_t>{{kOverflow, 1}}));
    EXPECT_GT(sent[rank], 40000) << "the shard, and the packet that did not fit";
  }
  gather(world, weights.array());
  weights.move(0.1);  // where nothing was expected to change
  gather(world, weights.array());
  weights.move(0.1);
  gather(world, weights.array());
  for (int rank = 0; rank < 4; ++rank) {
    EXPECT_EQ(stats_of(world, rank).host_waits, 0);
    EXPECT_LE(stats_of(world, rank).whole.at(kOverflow), 3);
  }
}

// The host runs ahead of its GPU, with several units, and some packets do not fit.
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
  const WeightStats stats = stats_of(world, 0);
  EXPECT_EQ(stats.gathers, 2 * kSteps * 3);
  EXPECT_GT(stats.host_waits, 0) << "two gathers ahead of a unit is as far as the host runs";
}

TEST(GpuWeights, WithoutATierForTheHostTheyCrossWhole) {
  GpuWorld world(NodeMap::parse("2x1", 2), delta_options(), GpuSettings{.host_tier = false});
  Weights weights(4000, DataType::kBFloat16);
  EXPECT_EQ(gather(world, weights.array()), std::vector<int64_t>(2, 4000));
  EXPECT_EQ(stats_of(world, 0).whole, (std::map<std::string, int64_t>{{"no tier for memory of the host", 1}}));
}

TEST(GpuWeights, InAGraphTheyCrossWhole) {
  GpuWorld world(NodeMap::parse("2x1", 2), delta_options());
  Weights weights(4000, DataType::kBFloat16);
  gather(world, weights.array());
  test::run_ranks_well(2, [&](int number) {
    GpuWorld::Rank& rank = world.ranks[number];
    GatherOnGpu captured(world, number, weights.array(), "unit");
    rank.gpu->begin_capture(rank.stream);
    captured.start();
    const auto graph = rank.gpu->end_capture(rank.stream);
    for (int replay = 0; replay < 2; ++replay) {
      rank.gpu->replay(graph, rank.stream);
      EXPECT_TRUE(captured.is_right());
    }
  });
  EXPECT_EQ(stats_of(world, 0).whole, (std::map<std::string, int64_t>{{"in a CUDA graph", 1}}));
  weights.move(1e-3);
  gather(world, weights.array());  // differs from what crossed before the graph
}

TEST(GpuWeights, ADamagedReplicaIsNamedCountedAndHealed) {
  std::atomic<bool> damages = false;
  const auto flip_a_bit = [&](const std::string& /*operation*/, Buffer arrived) {
    if (damages) {
      arrived.as<uint16_t>()[100] ^= 1;  // of node 0's weights, as node 1 holds them
    }
  };
  Options options = delta_options();
  options.replica_interval = 20;
  GpuWorld world(NodeMap::parse("3x1", 3), options,
                 GpuSettings{.wrap = test::hook(1, &Tiers::host_inter, {}, flip_a_bit)});
  Weights weights(6000 * 3, DataType::kBFloat16);
  learn(world, weights);  // 16 gathers
  damages = true;
  weights.move(100);
  test::run_ranks_well(3, [&](int rank) {
    GatherOnGpu gather(world, rank, weights.array(), "unit");
    gather.start();
    EXPECT_EQ(gather.is_right(), rank != 1);
  });
  damages = false;
  for (int number = 17; number < 21; ++number) {
    test::run_ranks_well(3, [&](int rank) {
      GatherOnGpu gather(world, rank, weights.array(), "unit");
      gather.start();
      EXPECT_EQ(gather.is_right(), rank != 1);
    });
  }
  gather(world, weights.array());  // 21: compares, and heals
  for (int rank = 0; rank < 3; ++rank) {
    const WeightStats stats = stats_of(world, rank);
    EXPECT_EQ(stats.healed, 1);
    EXPECT_EQ(stats.whole.count("the replica of node 1 had other bits than the others'"), 1);
  }
  weights.move(1e-3);
  gather(world, weights.array());
  EXPECT_EQ(stats_of(world, 0).healed, 1);
}

// Gathers until a call throws; the GPU is waited for after each.
std::vector<test::Outcome> gather_until_it_throws(GpuWorld& world, Weights& weights) {
  const Array whole = weights.array();
  return test::run_ranks(world.size(), [&](int rank) {
    for (int i = 0; i < 20; ++i) {
      GatherOnGpu gather(world, rank, whole, "unit");
      gather.start();
      world.ranks[rank].gpu->synchronize();
      std::this_thread::sleep_for(std::chrono::milliseconds(5));  // the watching thread looks
    }
  });
}

TEST(GpuWeights, ADamagedPacketEndsInANamedError) {
  std::atomic<bool> damages = false;
  const auto damage = [&](const std::string& operation, Buffer arrived) {
    if (damages && operation == "all_gather" && arrived.num_elements > 4 * kHeaderBytes) {
      arrived.as<std::byte>()[kHeaderBytes + 200] ^= std::byte{4};  // of node 0's packet
    }
  };
  GpuWorld world(
      NodeMap::parse("2x1", 2), delta_options(),
      GpuSettings{.timeout = std::chrono::milliseconds(2000), .wrap = test::hook(1, &Tiers::gather_inter, {}, damage)});
  Weights weights(40000, DataType::kBFloat16);
  learn(world, weights);
  damages = true;
  weights.move(1e-3);
  const auto outcomes = gather_until_it_throws(world, weights);
  EXPECT_NE(outcomes[1].text.find("corrupt packet of weights from node 0: its bytes have the checksum"),
            std::string::npos)
      << outcomes[1].text;
  EXPECT_FALSE(outcomes[0].text.empty()) << "the peers fail, too";
  EXPECT_STREQ(world.ranks[1].communicator->phase(), "decode weights");
}

// Ranks that gather other units: each rank of the rail says so.
TEST(GpuWeights, RanksThatDifferEndInANamedError) {
  GpuWorld world(NodeMap::parse("2x1", 2), delta_options(), GpuSettings{.timeout = std::chrono::milliseconds(2000)});
  const Weights weights(4000, DataType::kBFloat16);
  const auto outcomes = test::run_ranks(2, [&](int rank) {
    for (int i = 0; i < 20; ++i) {
      GatherOnGpu gather(world, rank, weights.array(), rank == 0 ? "a" : "b");
      gather.start();
      world.ranks[rank].gpu->synchronize();
      std::this_thread::sleep_for(std::chrono::milliseconds(5));
    }
  });
  for (const test::Outcome& outcome : outcomes) {
    EXPECT_NE(outcome.text.find("have unit"), std::string::npos) << outcome.text;
  }
}

// While the GPUs wait for the host, its tier fails: no rank waits for ever.
TEST(GpuWeights, AHostTierThatFailsEndsInAnError) {
  const auto fail = [](const std::string& /*operation*/, ConstBuffer /*in*/) {
    throw TransportError("the link is down");
  };
  GpuWorld world(
      NodeMap::parse("2x1", 2), delta_options(),
      GpuSettings{.timeout = std::chrono::milliseconds(500), .wrap = test::hook(0, &Tiers::host_inter, fail, {})});
  Weights weights(40000, DataType::kBFloat16);
  learn(world, weights);
  weights.move(100);
  const auto outcomes = gather_until_it_throws(world, weights);
  EXPECT_NE(outcomes[0].text.find("the link is down"), std::string::npos) << outcomes[0].text;
  EXPECT_FALSE(outcomes[1].text.empty());
}

// abort() from another thread, while the GPU waits for the host.
TEST(GpuWeights, AnAbortLetsTheGpuGoOn) {
  test::Mark arrived;
  test::Mark released;
  const auto hold = [&](const std::string& /*operation*/, ConstBuffer /*in*/) {
    arrived.set();
    released.wait();
  };
  GpuWorld world(
      NodeMap::parse("2x1", 2), delta_options(),
      GpuSettings{.timeout = std::chrono::milliseconds(500), .wrap = test::hook(0, &Tiers::host_inter, hold, {})});
  Weights weights(40000, DataType::kBFloat16);
  learn(world, weights);
  weights.move(100);
  std::thread aborts([&] {
    arrived.wait();
    world.ranks[0].communicator->abort();
  });
  const auto outcomes = test::run_ranks(2, [&](int rank) {
    GatherOnGpu gather(world, rank, weights.array(), "unit");
    gather.start();
    world.ranks[rank].gpu->synchronize();  // goes on, while the host's tier is still held
    if (rank == 0) {
      released.set();
    }
    world.ranks[rank].communicator->throw_if_faulted();
  });
  aborts.join();
  EXPECT_TRUE(outcomes[0].threw<TransportError>()) << outcomes[0].text;
}

}  // namespace
}  // namespace isthmus
