#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <barrier>
#include <cstring>
#include <functional>
#include <future>
#include <memory>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "isthmus/communicator.h"
#include "isthmus/error.h"
#include "isthmus/packet_header.h"
#include "isthmus/transport.h"
#include "tests/cpp/support/hooked_transport.h"
#include "tests/cpp/support/world.h"
#include "transport/side_by_side.h"

namespace isthmus {
namespace {

using std::chrono::milliseconds;
using test::Array;
using test::HookedTransport;
using test::kShortTimeout;
using test::kTimeout;
using test::lossy_options;
using test::Outcome;
using test::random_inputs;
using test::random_values;
using test::run_ranks;
using test::World;

// `tier`, with a touch on what arrives in all_to_all.
std::shared_ptr<Transport> tampering(const std::shared_ptr<Transport>& tier,
                                     const std::function<void(Buffer)>& tamper) {
  return std::make_shared<HookedTransport>(tier, nullptr, [tamper](const std::string& operation, Buffer arrived) {
    if (operation == "all_to_all") {
      tamper(arrived);
    }
  });
}

// Ranks that are not at the same step must not understand each other, and seeds must change from step to step.
TEST(Communicator, PacketsCarryTheStepOfTheirUnit) {
  std::vector<uint64_t> steps;  // in the packets that rank 1 got
  const auto wrap = [&](int rank, Tiers tiers) {
    if (rank == 1) {
      tiers.inter = tampering(tiers.inter, [&](Buffer arrived) {
        PacketHeader header;
        std::memcpy(&header, arrived.data, sizeof(header));
        steps.push_back(header.step);
      });
    }
    return tiers;
  };
  World world(NodeMap::parse("2x1", 2), lossy_options(), kTimeout, wrap);
  const std::vector<Array> gradients = random_inputs(2, 1000, DataType::kFloat32);
  for (const char* unit : {"a", "a", "b", "a", "b"}) {
    world.reduce_scatter(gradients, 1, nullptr, unit);
  }
  world.reduce_scatter(gradients, 1, "not requested", "a");
  world.reduce_scatter(gradients, 1, "not requested", "a");
  world.reduce_scatter(gradients, 1, nullptr, "a");
  EXPECT_EQ(steps, (std::vector<uint64_t>{0, 1, 0, 2, 1, 3, 6, 4}));
}

// Reduces until something fails, at most twice: who is done before a peer fails learns of it in the next call.
void reduce_twice(Communicator& communicator) {
  const int64_t elements = communicator.node_map().world_size() * 1000;
  const Array gradient(random_values(elements, 3), DataType::kFloat32);
  Array shard(1000, DataType::kFloat32);
  for (int step = 0; step < 2; ++step) {
    communicator.reduce_scatter(gradient.view(), shard.buffer(), {{"unit", elements, DataType::kFloat32}});
  }
}

class EveryCodec : public ::testing::TestWithParam<std::string> {
 protected:
  static Options options() { return test::options_of_codec(GetParam()); }
};
INSTANTIATE_TEST_SUITE_P(Codecs, EveryCodec, ::testing::ValuesIn(test::every_codec()),
                         [](const auto& parameter) { return parameter.param; });

TEST_P(EveryCodec, ACorruptPacketIsAnErrorOnEveryRank) {
  constexpr int kVictim = 2;
  const auto wrap = [](int rank, Tiers tiers) {
    if (rank == kVictim) {
      // The packet from node 0 comes first; byte 16 is in its step.
      tiers.inter = tampering(tiers.inter, [](Buffer arrived) { arrived.as<std::byte>()[16] ^= std::byte{1}; });
    }
    return tiers;
  };
  World world(NodeMap::parse("2x2", 4), options(), kTimeout, wrap);
  const std::vector<Outcome> outcomes = run_ranks(4, [&](int rank) { reduce_twice(*world.ranks[rank]); });
  EXPECT_TRUE(outcomes[kVictim].threw<PacketError>());
  EXPECT_NE(outcomes[kVictim].text.find("packet with step 1 where 0 is expected"), std::string::npos)
      << outcomes[kVictim].text;
  EXPECT_STREQ(world.ranks[kVictim]->phase(), "decode");
  for (const int rank : {0, 1, 3}) {
    EXPECT_TRUE(outcomes[rank].threw<TransportError>()) << "rank " << rank << ": " << outcomes[rank].text;
  }
  EXPECT_THROW(reduce_twice(*world.ranks[kVictim]), TransportError) << "it stays aborted";
}

// The packets of two other nodes, each of which is intact.
TEST_P(EveryCodec, PacketsOfOtherNodesAreNotTakenForEachOther) {
  struct Mix {
    const char* complaint;
    std::function<void(Buffer packets)> mix;
  };
  const auto part = [](Buffer packets, int node) {
    const Buffer packet = packets.part(node, packets.num_elements / 3);
    return std::pair(packet.as<std::byte>(), packet.as<std::byte>() + packet.num_elements);
  };
  const Mix mixes[] = {
      {"packet with sending node 2 where 1 is expected",
       [&](Buffer packets) {
         std::swap_ranges(part(packets, 1).first, part(packets, 1).second, part(packets, 2).first);
       }},
      {"packet with sending node 1 where 2 is expected",
       [&](Buffer packets) { std::copy(part(packets, 1).first, part(packets, 1).second, part(packets, 2).first); }},
  };
  for (const Mix& mix : mixes) {
    const auto wrap = [&](int rank, Tiers tiers) {
      if (rank == 0) {
        tiers.inter = tampering(tiers.inter, mix.mix);
      }
      return tiers;
    };
    World world(NodeMap::parse("3x1", 3), options(), kTimeout, wrap);
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
  for (const int rank : {0, 1, 2}) {
    EXPECT_TRUE(outcomes[rank].threw<TransportError>()) << "rank " << rank << ": " << outcomes[rank].text;
  }
  EXPECT_NE(outcomes[2].text.find("rank 3 did not come"), std::string::npos) << outcomes[2].text;
  EXPECT_STREQ(world.ranks[2]->phase(), "intra reduce-scatter");
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
  for (const int rank : {0, 1, 2}) {
    EXPECT_TRUE(outcomes[rank].threw<TransportError>()) << "rank " << rank << ": " << outcomes[rank].text;
  }
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
  EXPECT_FALSE(run_side_by_side(std::move(actions), milliseconds(50)));
  released->set_value();
  ended->get_future().wait();
  EXPECT_TRUE(run_side_by_side({[] {}, [] { throw Error("dropped"); }}, kTimeout));
}

}  // namespace
}  // namespace isthmus
