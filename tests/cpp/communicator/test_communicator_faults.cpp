// What goes wrong in a reduction: damaged and foreign packets, ranks that fail, stay away or abort.
#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <barrier>
#include <cstring>
#include <functional>
#include <future>
#include <memory>
#include <stdexcept>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "base/threads.h"
#include "isthmus/communicator.h"
#include "isthmus/error.h"
#include "isthmus/packet_header.h"
#include "isthmus/transport.h"
#include "tests/cpp/support/hooked_transport.h"
#include "tests/cpp/support/world.h"

namespace isthmus::test {
namespace {

constexpr int kVictim = 2;

// Ranks that are not at the same step must not understand each other, and seeds must change from step to step.
TEST(Communicator, PacketsCarryTheStepOfTheirUnit) {
  std::vector<uint64_t> steps;  // in the packets that rank 1 got
  const auto look = after("all_to_all", [&](Buffer arrived) {
    PacketHeader header;
    std::memcpy(&header, arrived.data, sizeof(header));
    steps.push_back(header.step);
  });
  World world(NodeMap::parse("2x1", 2), lossy_options(), kTimeout, hook(1, &Tiers::inter, nullptr, look));
  const std::vector<Array> gradients = random_inputs(2, 1000, DataType::kFloat32);
  for (const char* unit : {"a", "a", "b", "a", "b"}) {
    world.reduce_scatter(gradients, 1, {}, unit);
  }
  world.reduce_scatter(gradients, 1, Reason::kNotPrepared, "a");
  world.reduce_scatter(gradients, 1, Reason::kNotPrepared, "a");
  world.reduce_scatter(gradients, 1, {}, "a");
  EXPECT_EQ(steps, (std::vector<uint64_t>{0, 1, 0, 2, 1, 3, 6, 4}));
}

// Both reduce until something fails, at most twice: who is done before a peer fails learns of it in the next call.
void reduce_twice(KeyedCommunicator& communicator) {
  const int64_t elements = communicator.node_map().world_size() * 1000;
  const Array gradient(random_values(elements, 3), DataType::kFloat32);
  Array shard(1000, DataType::kFloat32);
  for (int step = 0; step < 2; ++step) {
    communicator.reduce_scatter(gradient.view(), shard.buffer(), {{"unit", elements, DataType::kFloat32}});
  }
}

void all_reduce_twice(KeyedCommunicator& communicator) {
  constexpr int64_t kElements = 4001;
  for (int step = 0; step < 2; ++step) {
    Array data(random_values(kElements, 3), DataType::kFloat32);
    communicator.all_reduce(data.buffer(), {{"unit", kElements, DataType::kFloat32, Collective::kAllReduce}});
  }
}

// Packets of rails 0 and 1 agree, but not the ranks of a node: their gradients would be added up.
TEST(Communicator, RanksOfOneNodeReduceTheSameParameters) {
  World world(NodeMap::parse("2x2", 4), lossy_options());
  const std::vector<Array> gradients = random_inputs(4, 1000, DataType::kFloat32);
  world.reduce_scatter(gradients, 1, {}, "unit");
  const int64_t sent_bytes = world.ranks[0]->stats().collectives[0].intra.sent_bytes;
  EXPECT_EQ(sent_bytes, 2 * 1000 * 4) << "labels do not count";
  const std::vector<Outcome> outcomes = run_ranks(4, [&](int rank) {
    Array shard(1000, DataType::kFloat32);
    const uint64_t layout = rank % 2 == 0 ? 7 : 8;
    const KeyedReduction reduction{{"unit", 4000, DataType::kFloat32, Collective::kReduceScatter, layout}};
    world.ranks[rank]->reduce_scatter(gradients[rank].view(), shard.buffer(), reduction);
  });
  for (int rank = 0; rank < 4; ++rank) {
    EXPECT_TRUE(outcomes[rank].threw<PacketError>()) << outcomes[rank].text;
    const std::string other = std::to_string(rank ^ 1);
    EXPECT_EQ(outcomes[rank].text,
              "unit \"unit\": rank " + other + " reduces another unit, or other parameters of it: " + kWhyUnitsDiffer);
  }
}

// There are no packets that would tell.
TEST(Communicator, RanksOfAllNodesReduceTheSameUnitInAFlatTier) {
  World world(NodeMap::parse("2x1", 2), flat_options());
  const std::vector<Outcome> outcomes = run_ranks(2, [&](int rank) {
    const Array gradient(random_values(4000, 1), DataType::kFloat32);
    Array shard(2000, DataType::kFloat32);
    const KeyedReduction reduction{{rank == 0 ? "a" : "b", 4000, DataType::kFloat32, Collective::kReduceScatter}};
    world.ranks[rank]->reduce_scatter(gradient.view(), shard.buffer(), reduction);
  });
  for (int rank = 0; rank < 2; ++rank) {
    EXPECT_TRUE(outcomes[rank].threw<PacketError>()) << outcomes[rank].text;
    EXPECT_NE(outcomes[rank].text.find(detail::concatenate(": rank ", 1 - rank, " reduces another unit")),
              std::string::npos)
        << outcomes[rank].text;
  }
}

class EveryCodec : public ::testing::TestWithParam<std::string> {
 protected:
  static Options options() { return options_of_codec(GetParam()); }

  static void expect_transport_errors(const std::vector<Outcome>& outcomes, const std::vector<int>& ranks) {
    for (const int rank : ranks) {
      EXPECT_TRUE(outcomes[rank].threw<TransportError>()) << "rank " << rank << ": " << outcomes[rank].text;
    }
  }
};
INSTANTIATE_TEST_SUITE_P(Codecs, EveryCodec, ::testing::ValuesIn(codec_names()),
                         [](const auto& parameter) { return parameter.param; });

TEST_P(EveryCodec, ACorruptPacketIsAnErrorOnEveryRank) {
  // The packet from node 0 comes first; byte 16 is in its step.
  const auto damage = after("all_to_all", [](Buffer arrived) { arrived.as<std::byte>()[16] ^= std::byte{1}; });
  World world(NodeMap::parse("2x2", 4), options(), kTimeout, hook(kVictim, &Tiers::inter, nullptr, damage));
  const std::vector<Outcome> outcomes = run_ranks(4, [&](int rank) { reduce_twice(*world.ranks[rank]); });
  EXPECT_TRUE(outcomes[kVictim].threw<PacketError>());
  EXPECT_NE(outcomes[kVictim].text.find("packet with step 1 where 0 is expected (from node 0, "), std::string::npos)
      << outcomes[kVictim].text;
  EXPECT_STREQ(to_string(world.ranks[kVictim]->phase()), "decode");
  expect_transport_errors(outcomes, {0, 1, 3});
  EXPECT_THROW(reduce_twice(*world.ranks[kVictim]), TransportError) << "it stays aborted";
}

// The packets of two other nodes, each of which is intact.
TEST_P(EveryCodec, PacketsOfOtherNodesAreNotTakenForEachOther) {
  struct Mix {
    const char* complaint;
    std::function<void(std::byte* packets, int64_t packet_bytes)> mix;
  };
  const Mix mixes[] = {
      {"packet with sending node 2 where 1 is expected (from node 1, ",
       [](std::byte* packets, int64_t bytes) {
         std::swap_ranges(packets + bytes, packets + 2 * bytes, packets + 2 * bytes);
       }},
      {"packet with sending node 1 where 2 is expected (from node 2, ",
       [](std::byte* packets, int64_t bytes) { std::copy_n(packets + bytes, bytes, packets + 2 * bytes); }},
  };
  for (const Mix& mix : mixes) {
    const auto arrive = after("all_to_all", [&](Buffer out) { mix.mix(out.as<std::byte>(), out.num_elements / 3); });
    World world(NodeMap::parse("3x1", 3), options(), kTimeout, hook(0, &Tiers::inter, nullptr, arrive));
    const std::vector<Outcome> outcomes = run_ranks(3, [&](int rank) { reduce_twice(*world.ranks[rank]); });
    EXPECT_TRUE(outcomes[0].threw<PacketError>());
    EXPECT_NE(outcomes[0].text.find(mix.complaint), std::string::npos) << outcomes[0].text;
  }
}

TEST_P(EveryCodec, AMissingRankIsNamedAndAllFail) {
  World world(NodeMap::parse("2x2", 4), options(), kShortTimeout);
  const std::vector<Outcome> outcomes = run_ranks(4, [&](int rank) {
    if (rank != 3) {
      reduce_twice(*world.ranks[rank]);
    }
  });
  expect_transport_errors(outcomes, {0, 1, 2});
  EXPECT_NE(outcomes[2].text.find("rank 3 did not come"), std::string::npos) << outcomes[2].text;
  EXPECT_STREQ(to_string(world.ranks[2]->phase()), "intra reduce-scatter");
}

TEST_P(EveryCodec, AbortReachesRanksThatWaitInAnyTier) {
  World world(NodeMap::parse("2x2", 4), options());
  const std::vector<Outcome> outcomes = run_ranks(4, [&](int rank) {
    if (rank == 3) {
      std::this_thread::sleep_for(milliseconds(20));  // let the others wait; correct without it, too
      world.ranks[3]->abort();
      return;
    }
    reduce_twice(*world.ranks[rank]);
  });
  expect_transport_errors(outcomes, {0, 1, 2});
  EXPECT_EQ(world.ranks[1]->stats().collectives[0].calls, 0);
}

TEST_P(EveryCodec, AbortFromAnotherThreadEndsTheOwnWait) {
  World world(NodeMap::parse("2x1", 2), options());
  const std::vector<Outcome> outcomes =
      run_ranks(2, [&](int rank) { rank == 0 ? reduce_twice(*world.ranks[0]) : world.ranks[0]->abort(); });
  EXPECT_TRUE(outcomes[0].threw<TransportError>()) << outcomes[0].text;
}

TEST_P(EveryCodec, RanksThatReduceDifferentUnitsGetAnError) {
  World world(NodeMap::parse("2x1", 2), options());
  const std::vector<Outcome> outcomes = run_ranks(2, [&](int rank) {
    const Array gradient(2000, DataType::kFloat32);
    Array shard(1000, DataType::kFloat32);
    world.ranks[rank]->reduce_scatter(gradient.view(), shard.buffer(),
                                      {{rank == 0 ? "a" : "b", 2000, DataType::kFloat32}});
  });
  for (const Outcome& outcome : outcomes) {
    EXPECT_TRUE(outcome.threw<PacketError>()) << outcome.text;
    EXPECT_NE(outcome.text.find("packet with unit"), std::string::npos) << outcome.text;
  }
}

// --- the phases of an all-reduce

struct Phase {
  const char* name;
  std::shared_ptr<Transport> Tiers::*tier;
  const char* operation;
};
constexpr Phase kPhases[] = {{"intra reduce-scatter", &Tiers::intra, "reduce_scatter"},
                             {"inter exchange", &Tiers::inter, "all_to_all"},
                             {"inter all-gather", &Tiers::inter, "all_gather"},
                             {"intra all-gather", &Tiers::intra, "all_gather"}};

TEST_P(EveryCodec, ARankThatFailsInAnyPhaseMakesAllFail) {
  for (const Phase& phase : kPhases) {
    SCOPED_TRACE(phase.name);
    const auto fail = before(phase.operation, [](ConstBuffer) { throw std::runtime_error("the cable was pulled"); });
    World world(NodeMap::parse("2x2", 4), options(), kTimeout, hook(kVictim, phase.tier, fail, nullptr));
    const std::vector<Outcome> outcomes = run_ranks(4, [&](int rank) { all_reduce_twice(*world.ranks[rank]); });
    EXPECT_EQ(outcomes[kVictim].text, "the cable was pulled");
    EXPECT_STREQ(to_string(world.ranks[kVictim]->phase()), phase.name);
    expect_transport_errors(outcomes, {0, 1, 3});
    EXPECT_THROW(all_reduce_twice(*world.ranks[kVictim]), TransportError) << "it stays aborted";
  }
}

// The owner sends a packet that is damaged already: nobody may take it for a result.
TEST_P(EveryCodec, ADamagedResultIsAnErrorOnEveryRank) {
  for (const int64_t byte : {16, 100}) {  // in its step; in its values or its index
    const auto damage = before("all_gather", [byte](ConstBuffer in) { bytes_of(in)[byte] ^= std::byte{1}; });
    World world(NodeMap::parse("2x2", 4), options(), kTimeout, hook(kVictim, &Tiers::inter, damage, nullptr));
    const std::vector<Outcome> outcomes = run_ranks(4, [&](int rank) { all_reduce_twice(*world.ranks[rank]); });
    for (int rank = 0; rank < 4; ++rank) {
      EXPECT_TRUE(outcomes[rank].threw<PacketError>()) << "rank " << rank << ": " << outcomes[rank].text;
      EXPECT_NE(outcomes[rank].text.find(" (from node 1, "), std::string::npos) << outcomes[rank].text;
      EXPECT_STREQ(to_string(world.ranks[rank]->phase()), "decode result");
    }
  }
}

// Rank 2 is of node 1: it takes the results of its own node for node 0's, too.
TEST_P(EveryCodec, AResultOfAnotherNodeIsRefused) {
  const auto mix = after("all_gather", [](Buffer out) {
    const int64_t half = out.num_elements / 2;
    std::copy_n(out.as<std::byte>() + half, half, out.as<std::byte>());
  });
  World world(NodeMap::parse("2x2", 4), options(), kTimeout, hook(kVictim, &Tiers::inter, nullptr, mix));
  const std::vector<Outcome> outcomes = run_ranks(4, [&](int rank) { all_reduce_twice(*world.ranks[rank]); });
  for (const int rank : {2, 3}) {  // who gathers from it, and from whom it gathers
    EXPECT_NE(outcomes[rank].text.find("packet with sending node 1 where 0 is expected"), std::string::npos)
        << "rank " << rank << ": " << outcomes[rank].text;
  }
}

// A packet of a piece has the size of one of the result, and comes from the same unit in the same step.
TEST_P(EveryCodec, APieceIsNoResult) {
  std::vector<std::byte> piece;
  const auto keep = [&](const std::string& operation, ConstBuffer in) {
    if (operation == "all_to_all") {
      const ConstBuffer packet = in.part(0, in.num_elements / 2);  // for node 0; the victim is on node 1
      piece.assign(packet.as<std::byte>(), packet.as<std::byte>() + packet.num_elements);
    } else if (operation == "all_gather") {
      ASSERT_EQ(static_cast<int64_t>(piece.size()), in.num_elements);
      std::copy(piece.begin(), piece.end(), bytes_of(in));
    }
  };
  World world(NodeMap::parse("2x2", 4), options(), kTimeout, hook(kVictim, &Tiers::inter, keep, nullptr));
  const std::vector<Outcome> outcomes = run_ranks(4, [&](int rank) { all_reduce_twice(*world.ranks[rank]); });
  for (const Outcome& outcome : outcomes) {
    EXPECT_TRUE(outcome.threw<PacketError>()) << outcome.text;
  }
}

// A GPU's tier may end only when the operations of all others on that GPU have: one after the other they would hang.
TEST(Communicator, AbortsAllTiersAtOnce) {
  std::barrier all_are_asked(2);
  std::atomic<int> num_ended = 0;
  const auto wrap = [&](int rank, Tiers tiers) {
    const auto wait_for_others = [&] {
      all_are_asked.arrive_and_wait();
      ++num_ended;
    };
    if (rank == 0) {
      tiers.intra = std::make_shared<HookedTransport>(tiers.intra, nullptr, nullptr, wait_for_others);
      tiers.inter = std::make_shared<HookedTransport>(tiers.inter, nullptr, nullptr, wait_for_others);
    }
    return tiers;
  };
  World world(NodeMap::parse("2x2", 4), lossy_options(), kTimeout, wrap);
  world.ranks[0]->abort();
  EXPECT_EQ(num_ended, 2);
}

TEST(SideBySide, AbandonsWhatDoesNotEnd) {
  const auto released = std::make_shared<std::promise<void>>();
  const auto ended = std::make_shared<std::promise<void>>();
  std::vector<std::function<void()>> actions{
      [] { throw Error("dropped"); },
      [released, ended] {
        released->get_future().wait();
        ended->set_value();
      },
  };
  EXPECT_FALSE(run_in_threads(std::move(actions), milliseconds(50)));
  released->set_value();
  ended->get_future().wait();
  EXPECT_TRUE(run_in_threads({[] {}, [] { throw Error("dropped"); }}, kTimeout));
}

}  // namespace
}  // namespace isthmus::test
