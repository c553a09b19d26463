#include <gtest/gtest.h>

#include <algorithm>
#include <memory>
#include <stdexcept>
#include <string>
#include <thread>
#include <vector>

#include "isthmus/communicator.h"
#include "isthmus/error.h"
#include "tests/cpp/support/hooked_transport.h"
#include "tests/cpp/support/world.h"

namespace isthmus {
namespace {

using test::Array;
using test::HookedTransport;
using test::kShortTimeout;
using test::kTimeout;
using test::lossy_options;
using test::Outcome;
using test::random_values;
using test::run_ranks;
using test::World;

constexpr int64_t kElements = 4001;
constexpr int kVictim = 2;

// Reduces until something fails, at most twice: who is done before a peer fails learns of it in the next call.
void reduce_twice(Communicator& communicator) {
  for (int step = 0; step < 2; ++step) {
    Array data(random_values(kElements, 3), DataType::kFloat32);
    communicator.all_reduce(data.buffer(), {{"unit", kElements, DataType::kFloat32, Collective::kAllReduce}});
  }
}

// The victim's tiers pass `before` and `after` what `tier` does.
test::Wrap hook_victim(const std::string& tier, const HookedTransport::Before& before,
                       const HookedTransport::After& after) {
  return [=](int rank, Tiers tiers) {
    if (rank == kVictim) {
      auto& hooked = tier == "intra" ? tiers.intra : tiers.inter;
      hooked = std::make_shared<HookedTransport>(hooked, before, after);
    }
    return tiers;
  };
}

class EveryCodec : public ::testing::TestWithParam<std::string> {
 protected:
  static Options options() { return test::options_of_codec(GetParam()); }

  static void expect_transport_errors(const std::vector<Outcome>& outcomes, const std::vector<int>& ranks) {
    for (const int rank : ranks) {
      EXPECT_TRUE(outcomes[rank].threw<TransportError>()) << "rank " << rank << ": " << outcomes[rank].text;
    }
  }
};
INSTANTIATE_TEST_SUITE_P(Codecs, EveryCodec, ::testing::ValuesIn(test::every_codec()),
                         [](const auto& parameter) { return parameter.param; });

struct Phase {
  const char* name;
  const char* tier;
  const char* operation;
};
constexpr Phase kPhases[] = {{"intra reduce-scatter", "intra", "reduce_scatter"},
                             {"inter exchange", "inter", "all_to_all"},
                             {"inter all-gather", "inter", "all_gather"},
                             {"intra all-gather", "intra", "all_gather"}};

TEST_P(EveryCodec, ARankThatFailsInAnyPhaseMakesAllFail) {
  for (const Phase& phase : kPhases) {
    SCOPED_TRACE(phase.name);
    const auto wrap = hook_victim(
        phase.tier,
        [phase](const std::string& operation, ConstBuffer) {
          if (operation == phase.operation) {
            throw std::runtime_error("the cable was pulled");
          }
        },
        nullptr);
    World world(NodeMap::parse("2x2", 4), options(), kTimeout, wrap);
    const std::vector<Outcome> outcomes = run_ranks(4, [&](int rank) { reduce_twice(*world.ranks[rank]); });
    EXPECT_EQ(outcomes[kVictim].text, "the cable was pulled");
    EXPECT_STREQ(world.ranks[kVictim]->phase(), phase.name);
    expect_transport_errors(outcomes, {0, 1, 3});
    EXPECT_THROW(reduce_twice(*world.ranks[kVictim]), TransportError) << "it stays aborted";
  }
}

// The owner sends a packet that is damaged already: nobody may take it for a result.
TEST_P(EveryCodec, ADamagedResultIsAnErrorOnEveryRank) {
  for (const int64_t byte : {16, 100}) {  // in its step; in its values or its index
    const auto wrap = hook_victim(
        "inter",
        [byte](const std::string& operation, ConstBuffer in) {
          if (operation == "all_gather") {
            static_cast<std::byte*>(const_cast<void*>(in.data))[byte] ^= std::byte{1};
          }
        },
        nullptr);
    World world(NodeMap::parse("2x2", 4), options(), kTimeout, wrap);
    const std::vector<Outcome> outcomes = run_ranks(4, [&](int rank) { reduce_twice(*world.ranks[rank]); });
    for (int rank = 0; rank < 4; ++rank) {
      EXPECT_TRUE(outcomes[rank].threw<PacketError>()) << "rank " << rank << ": " << outcomes[rank].text;
      EXPECT_STREQ(world.ranks[rank]->phase(), "decode result");
    }
  }
}

TEST_P(EveryCodec, AResultThatIsDamagedOnItsWayIsFoundWhereItArrives) {
  for (const char* tier : {"inter", "intra"}) {
    const auto wrap = hook_victim(tier, nullptr, [](const std::string& operation, Buffer out) {
      if (operation == "all_gather") {
        out.as<std::byte>()[100] ^= std::byte{1};  // of the packet of its own node's, or rail's, first rank
      }
    });
    World world(NodeMap::parse("2x2", 4), options(), kTimeout, wrap);
    const std::vector<Outcome> outcomes = run_ranks(4, [&](int rank) { reduce_twice(*world.ranks[rank]); });
    EXPECT_TRUE(outcomes[kVictim].threw<PacketError>()) << tier << ": " << outcomes[kVictim].text;
    for (const int rank : {0, 1, 3}) {
      EXPECT_TRUE(outcomes[rank].threw<TransportError>() || outcomes[rank].threw<PacketError>())
          << tier << ", rank " << rank << ": " << outcomes[rank].text;
    }
  }
}

// Rank 2 is of node 1: it takes the results of node 0 for its own node's, too.
TEST_P(EveryCodec, AResultOfAnotherNodeIsRefused) {
  const auto wrap = hook_victim("inter", nullptr, [](const std::string& operation, Buffer out) {
    if (operation == "all_gather") {
      const Buffer first = out.part(0, out.num_elements / 2);
      std::copy(first.as<std::byte>(), first.as<std::byte>() + first.num_elements,
                out.part(1, first.num_elements).as<std::byte>());
    }
  });
  World world(NodeMap::parse("2x2", 4), options(), kTimeout, wrap);
  const std::vector<Outcome> outcomes = run_ranks(4, [&](int rank) { reduce_twice(*world.ranks[rank]); });
  for (const int rank : {2, 3}) {  // who gathers from it, and from whom it gathers
    EXPECT_NE(outcomes[rank].text.find("packet with sending node 0 where 1 is expected"), std::string::npos)
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
      std::copy(piece.begin(), piece.end(), static_cast<std::byte*>(const_cast<void*>(in.data)));
    }
  };
  World world(NodeMap::parse("2x2", 4), options(), kTimeout, hook_victim("inter", keep, nullptr));
  const std::vector<Outcome> outcomes = run_ranks(4, [&](int rank) { reduce_twice(*world.ranks[rank]); });
  for (const Outcome& outcome : outcomes) {
    EXPECT_TRUE(outcome.threw<PacketError>()) << outcome.text;
  }
}

}  // namespace
}  // namespace isthmus
