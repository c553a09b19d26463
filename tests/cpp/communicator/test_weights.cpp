// Gathers of weights as differences, on the CPU and on emulated GPUs: bits, bytes, and what goes wrong.
#include <gtest/gtest.h>

#include <atomic>
#include <functional>
#include <map>
#include <string>
#include <tuple>
#include <vector>

#include "isthmus/error.h"
#include "tests/cpp/support/hooked_transport.h"
#include "tests/cpp/support/weight_world.h"
#include "tests/cpp/support/weights.h"

namespace isthmus::test {
namespace {

constexpr Executor kExecutors[] = {Executor::kCpu, Executor::kGpu};

class EveryMap : public testing::TestWithParam<std::tuple<NodeMap, Executor>> {
 protected:
  WeightWorld world_{std::get<1>(GetParam()), std::get<0>(GetParam())};
};
INSTANTIATE_TEST_SUITE_P(
    Maps, EveryMap, testing::Combine(testing::ValuesIn(maps_of_weights()), testing::ValuesIn(kExecutors)),
    [](const auto& parameter) {
      return name_of_map({std::get<0>(parameter.param), 0}) + "_" + name_of_executor(std::get<1>(parameter.param));
    });

TEST_P(EveryMap, GathersHaveTheBitsOfPlainOnes) {
  for (const DataType dtype : {DataType::kBFloat16, DataType::kFloat16, DataType::kFloat32, DataType::kFloat64}) {
    move_and_gather(world_.size(), dtype,
                    [&](const Array& whole, const std::string& unit) { world_.gather(whole, unit); });
  }
}

// What a rank sends is the headers and its own packet, to the byte, for each other node.
TEST_P(EveryMap, PayloadIsHeadersAndPackets) {
  const int64_t others = world_.map().num_nodes() - 1;
  Weights weights(5000 * world_.size(), DataType::kBFloat16);
  const Array before = weights.array();
  EXPECT_EQ(world_.gather(before), std::vector<int64_t>(world_.size(), (64 + 10000) * others));
  EXPECT_EQ(world_.gather(before), std::vector<int64_t>(world_.size(), 64 * others));
  weights.move(1e-3);
  const Array after = weights.array();
  const std::vector<int64_t> sent = world_.gather(after);
  for (int rank = 0; rank < world_.size(); ++rank) {
    const size_t bytes = packet_of(before.view().part(rank, 5000), after.view().part(rank, 5000)).size();
    EXPECT_EQ(sent[rank], (64 + static_cast<int64_t>(bytes)) * others);
    EXPECT_LT(bytes, 5000);
  }
}

class WeightsOf : public testing::TestWithParam<Executor> {
 protected:
  // A world whose rail lets a test see and damage what rank 1 is about to hold.
  static WeightWorld hooked_world(int nodes, const HookedTransport::After& after,
                                  const Options& options = delta_options()) {
    return {GetParam(), NodeMap::parse(std::to_string(nodes) + "x1", nodes), options,
            hook(1, WeightWorld::tier_of(GetParam()), nullptr, after)};
  }
};
INSTANTIATE_TEST_SUITE_P(Executors, WeightsOf, testing::ValuesIn(kExecutors),
                         [](const auto& parameter) { return name_of_executor(parameter.param); });

TEST_P(WeightsOf, StatisticsSayWhatCrossed) {
  WeightWorld world(GetParam(), "2x2", 4);
  Weights weights(8000, DataType::kBFloat16);
  world.gather(weights.array(), "first");
  world.gather(weights.array(), "first");
  weights.move(1e-3);
  world.gather(weights.array(), "first");
  world.gather(weights.array(), "second");
  for (int rank = 0; rank < 4; ++rank) {
    Communicator& communicator = world.communicator(rank);
    const Stats stats = communicator.stats();
    EXPECT_EQ(stats.weights.gathers, 4);
    EXPECT_EQ(stats.weights.unchanged, 1);
    EXPECT_EQ(stats.weights.healed, 0);
    EXPECT_EQ(stats.weights.replica_bytes, 2 * 2 * 2000 * 2);
    const std::map<Reason, int64_t> whole = {{Reason::kFirstGather, 2}};
    EXPECT_EQ(stats.weights.whole, whole);
    ASSERT_EQ(stats.units.size(), 2);
    const UnitStats& unit = stats.units.at(key_of("first", weights.array().view()).hash());
    const UnitStats& second = stats.units.at(key_of("second", weights.array().view()).hash());
    EXPECT_EQ(second.codec, "delta");
    EXPECT_EQ(unit.codec, "delta");
    EXPECT_EQ(unit.name, "first");
    EXPECT_EQ(unit.calls, 3);
    EXPECT_EQ(unit.coded_elements, 2 * 2000);  // of the unchanged shard as well, which no byte crossed for
    EXPECT_GT(unit.packet_bytes, 0);
    EXPECT_LT(unit.packet_bytes, 2000);
    communicator.reset_stats();
    EXPECT_EQ(communicator.stats().weights.gathers, 0);
    world.communicator(rank).let_go(key_of("second", weights.array().view()));
    EXPECT_EQ(communicator.stats().weights.replica_bytes, 2 * 2000 * 2) << "what nobody holds is gone";
  }
}

TEST_P(WeightsOf, ADamagedReplicaIsNamedCountedAndHealed) {
  for (const int nodes : {2, 3}) {
    std::atomic<bool> damaged = false;
    const auto flip_a_bit = [&](const std::string& operation, Buffer out) {
      if (operation == "all_gather" && out.dtype != DataType::kByte && !damaged.exchange(true)) {
        out.as<uint16_t>()[100] ^= 1;  // of rank 0's weights, as rank 1 holds them
      }
    };
    WeightWorld world = hooked_world(nodes, flip_a_bit);
    Weights weights(6000, DataType::kBFloat16);
    world.try_to_gather(weights.array());
    ASSERT_TRUE(damaged);
    weights.move(1e-3);
    world.gather(weights.array());    // compares, and heals
    const bool is_known = nodes > 2;  // of two nodes nobody knows which one is right
    const Reason reason = is_known ? Reason::kReplicaDiffers : Reason::kReplicasDiffer;
    using Differing = std::map<int, int64_t>;
    for (int rank = 0; rank < nodes; ++rank) {
      const WeightStats stats = world.stats(rank);
      EXPECT_EQ(stats.healed, 1);
      EXPECT_EQ(stats.whole.size(), 2);
      EXPECT_EQ(stats.whole.count(reason), 1);
      EXPECT_EQ(stats.differing, is_known ? Differing({{1, 1}}) : Differing());
    }
    weights.move(1e-3);
    world.gather(weights.array());
    EXPECT_EQ(world.stats(0).healed, 1);
  }
}

TEST_P(WeightsOf, ReplicasAreComparedAtTheInterval) {
  for (const int64_t interval : {0, 1, 3}) {
    std::vector<uint64_t> gathers;  // at which rank 0 sent a checksum
    const auto look = [&](const std::string& operation, Buffer out) {
      if (operation == "all_gather" && out.num_elements == 2 * sizeof(WeightHeader)) {
        const auto& header = out.as<WeightHeader>()[0];
        if (header.replica_checksum != 0) {
          gathers.push_back(header.gather);
        }
      }
    };
    Options options = delta_options();
    options.replica_interval = interval;
    WeightWorld world = hooked_world(2, look, options);
    Weights weights(4000, DataType::kBFloat16);
    for (int i = 0; i < 8; ++i) {
      world.gather(weights.array());
    }
    const std::vector<uint64_t> expected = interval == 0   ? std::vector<uint64_t>{}
                                           : interval == 1 ? std::vector<uint64_t>{1, 2, 3, 4, 5, 6, 7}
                                                           : std::vector<uint64_t>{1, 4, 7};
    EXPECT_EQ(gathers, expected);
  }
}

TEST_P(WeightsOf, ADamagedPacketEndsInANamedError) {
  WeightWorld world = hooked_world(
      2, after("all_gather_uneven", [](Buffer out) { out.as<std::byte>()[out.num_elements / 2] ^= std::byte{4}; }));
  Weights weights(4000, DataType::kBFloat16);
  world.gather(weights.array());
  weights.move(1e-3);
  const auto outcomes = world.try_to_gather(weights.array());
  EXPECT_TRUE(outcomes[1].threw<PacketError>());
  EXPECT_NE(outcomes[1].text.find("corrupt packet of weights from node 0"), std::string::npos) << outcomes[1].text;
  // Nothing half new is used: the communicator is aborted.
  EXPECT_THROW(world.gather(1, weights.array()), TransportError);
}

// Every rank says the same, and which node's weights are others.
TEST_P(WeightsOf, RanksThatGatherDifferentUnitsEndInAnErrorOnAll) {
  WeightWorld world(GetParam(), "3x1", 3, delta_options());
  const auto outcomes = run_ranks(
      3, [&](int rank) { world.gather(rank, Array(3000, DataType::kBFloat16), rank == 2 ? "other" : "unit"); });
  for (const Outcome& outcome : outcomes) {
    EXPECT_TRUE(outcome.threw<PacketError>() || outcome.threw<TransportError>()) << outcome.text;
  }
  EXPECT_TRUE(outcomes[0].threw<PacketError>());
  EXPECT_NE(outcomes[0].text.find("weights of node 2 have unit"), std::string::npos) << outcomes[0].text;
}

// As one that frees a model's replicas earlier than others.
TEST_P(WeightsOf, ARankThatLostItsReplicaGathersWholeWithTheOthers) {
  WeightWorld world(GetParam(), "3x1", 3, delta_options());
  Weights weights(6000, DataType::kBFloat16);
  for (int i = 0; i < 3; ++i) {
    world.gather(weights.array());
  }
  world.communicator(1).let_go();
  weights.move(1e-3);
  EXPECT_EQ(world.gather(weights.array()), std::vector<int64_t>(3, 2 * (64 + 4000)));
  EXPECT_EQ(world.stats(0).whole.at(Reason::kNoReplica), 1);
  EXPECT_EQ(world.stats(1).whole.at(Reason::kFirstGather), 2);
  weights.move(1e-3);
  world.gather(weights.array());
  EXPECT_EQ(world.gather(weights.array()), std::vector<int64_t>(3, 2 * 64));
}

// Changes the header that rank 1 sends in the second gather.
std::vector<Outcome> gather_with_header(Executor executor, const std::function<void(WeightHeader&)>& change) {
  int headers = 0;
  const auto edit = before("all_gather", [&](ConstBuffer in) {
    if (in.num_elements == sizeof(WeightHeader) && ++headers == 2) {
      change(*reinterpret_cast<WeightHeader*>(bytes_of(in)));
    }
  });
  WeightWorld world(executor, "2x1", 2, delta_options(), hook(1, WeightWorld::tier_of(executor), edit, nullptr));
  const Weights weights(4000, DataType::kBFloat16);
  world.gather(weights.array());
  return world.try_to_gather(weights.array());
}

TEST_P(WeightsOf, AHeaderThatDoesNotFitEndsInAnErrorOnAll) {
  struct Case {
    const char* complaint;
    std::function<void(WeightHeader&)> change;
  };
  for (const Case& each :
       {Case{"weights of node 1 have gather 7, where 1 is expected",
             [](WeightHeader& header) {
               header.gather = 7;
               header.seal();
             }},
        Case{"corrupt header of the weights of node 1", [](WeightHeader& header) { header.packet_bytes = 8; }}}) {
    for (const Outcome& outcome : gather_with_header(GetParam(), each.change)) {
      EXPECT_TRUE(outcome.threw<PacketError>());
      EXPECT_NE(outcome.text.find(each.complaint), std::string::npos) << outcome.text;
    }
  }
}

TEST_P(WeightsOf, BadInputIsRefusedBeforeAnythingIsSent) {
  WeightWorld world(GetParam(), "2x1", 2, delta_options());
  KeyedCommunicator& communicator = world.communicator(0);
  const Array shard(10, DataType::kBFloat16);
  Array gathered(20, DataType::kBFloat16);
  UnitKey key = key_of("unit", gathered.view());
  key.num_elements = 21;
  EXPECT_THROW(communicator.gather_weights(shard.view(), gathered.buffer(), key), Error);
  key = key_of("unit", gathered.view());
  key.collective = Collective::kReduceScatter;
  EXPECT_THROW(communicator.gather_weights(shard.view(), gathered.buffer(), key), Error);
  Array of_another_type(20, DataType::kFloat16);
  EXPECT_THROW(communicator.gather_weights(shard.view(), of_another_type.buffer(), key), Error);
  world.gather(Weights(20, DataType::kBFloat16).array());
}

}  // namespace
}  // namespace isthmus::test
