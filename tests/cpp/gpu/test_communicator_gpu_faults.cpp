// What goes wrong on the device or between ranks is thrown by a later call, in the CPU's words, and no rank hangs.
#include <gtest/gtest.h>

#include <atomic>
#include <memory>
#include <regex>
#include <string>
#include <thread>
#include <vector>

#include "isthmus/communicator.h"
#include "isthmus/error.h"
#include "isthmus/packet_header.h"
#include "tests/cpp/support/gpu_world.h"
#include "tests/cpp/support/hooked_transport.h"

namespace isthmus::test {
namespace {

constexpr int kVictim = 2;

// `tier`, which damages what `operation` brings: a bit of the step of the first packet.
std::shared_ptr<HookedTransport> damaging(const std::shared_ptr<Transport>& tier, const std::string& operation,
                                          const std::atomic<bool>& damages) {
  return std::make_shared<HookedTransport>(tier, nullptr, after(operation, [&damages](Buffer arrived) {
                                             arrived.as<std::byte>()[16] ^= std::byte{damages.load()};
                                           }));
}

// One call after another until one throws, at most ten; between them the host waits for the device, as it does some
// day. On the CPU likewise.
void repeat(const GpuWorld::Rank& rank, const Call& call, int number, int world_size) {
  for (int i = 0; i < 10; ++i) {
    std::vector<CallOnGpu> calls;
    calls.emplace_back(*rank.gpu, call, number, world_size);
    run(rank, calls, 1);
    rank.gpu->synchronize();
  }
}
void repeat(KeyedCommunicator& communicator, const Call& call, int number) {
  for (int i = 0; i < 10; ++i) {
    run_on_cpu(communicator, {call}, number);
  }
}

// In a call, a rank reduces another unit than the ranks whose gradients its own would be added to, and than its peer on
// the other node. Nothing follows. No rank may take the sums for its own.
void expect_refused_units(const NodeMap& map, const Options& options, Collective collective) {
  GpuWorld world(map, options);
  const int last = world.size() - 1;
  std::vector<std::vector<CallOnGpu>> calls(static_cast<size_t>(world.size()));
  const std::vector<Outcome> outcomes = run_ranks(world.size(), [&](int rank) {
    const std::string unit = rank == last ? "other" : "unit";
    calls[rank] = prepare(world, {{collective, 4000, kFloat32, 1, unit}}, rank);
    run(world.ranks[rank], calls[rank], 1);
    world.ranks[rank].gpu->synchronize();
    world.ranks[rank].communicator->throw_if_faulted();
  });
  std::string all_texts;
  for (int rank = 0; rank <= last; ++rank) {
    all_texts += outcomes[rank].text + "\n";
    EXPECT_NE(outcomes[rank].text.find(kWhyUnitsDiffer), std::string::npos) << outcomes[rank].text;
    EXPECT_TRUE(outcomes[rank].threw<PacketError>()) << "rank " << rank << ": " << outcomes[rank].text;
  }
  EXPECT_NE(all_texts.find(detail::concatenate(": rank ", last, " of the group reduces another unit")),
            std::string::npos)
      << all_texts;
}

class EveryCodecOnGpu : public ::testing::TestWithParam<std::string> {
 protected:
  static Options options() { return options_of_codec(GetParam()); }
  // What the victim of such damage is told, on the GPU; checks that all else is as it should be.
  static void expect_error_of_cpu(const Call& call, const Wrap& wrap) {
    GpuWorld world(NodeMap::parse("2x2", 4), options(), GpuSettings{.wrap = wrap});
    World cpu(world.map, options(), kTimeout, wrap);
    const std::vector<Outcome> expected = run_ranks(4, [&](int rank) { repeat(*cpu.ranks[rank], call, rank); });
    const std::vector<Outcome> outcomes =
        run_ranks(4, [&](int rank) { repeat(world.ranks[rank], call, rank, world.size()); });
    EXPECT_TRUE(outcomes[kVictim].threw<PacketError>()) << outcomes[kVictim].text;
    // Of damaged results the CPU meets those of its own node first.
    const auto of_any_node = [&](const std::string& text) {
      const bool may_differ = call.collective == Collective::kAllReduce;
      return may_differ ? std::regex_replace(text, std::regex("from node [0-9]"), "from a node") : text;
    };
    EXPECT_EQ(of_any_node(outcomes[kVictim].text), of_any_node(expected[kVictim].text));
    KeyedCommunicator& victim = *world.ranks[kVictim].communicator;
    EXPECT_STREQ(to_string(victim.phase()), "decode");
    // Who gathers from a rank whose own exchange has failed gets what that has, which is no packet.
    const bool may_gather_garbage = call.collective == Collective::kAllReduce;
    for (const int rank : {0, 1, 3}) {
      EXPECT_TRUE(outcomes[rank].threw<TransportError>() || (may_gather_garbage && outcomes[rank].threw<PacketError>()))
          << "rank " << rank << ": " << outcomes[rank].text;
    }
    EXPECT_THROW(repeat(world.ranks[kVictim], call, kVictim, world.size()), TransportError) << "it stays aborted";
    EXPECT_THROW(victim.throw_if_faulted(), TransportError);
  }
};
INSTANTIATE_TEST_SUITE_P(Codecs, EveryCodecOnGpu, ::testing::ValuesIn(codec_names()),
                         [](const auto& parameter) { return parameter.param; });

TEST_P(EveryCodecOnGpu, ACorruptPacketIsTheErrorOfTheCpu) {
  const std::atomic<bool> damages = true;
  expect_error_of_cpu({Collective::kReduceScatter, 4000, DataType::kBFloat16}, [&](int rank, Tiers tiers) {
    if (rank == kVictim) {
      tiers.inter = damaging(tiers.inter, "all_to_all", damages);
    }
    return tiers;
  });
}

TEST_P(EveryCodecOnGpu, ACorruptResultIsTheErrorOfTheCpu) {
  const std::atomic<bool> damages = true;
  expect_error_of_cpu({Collective::kAllReduce, 4001, kFloat32}, [&](int rank, Tiers tiers) {
    if (rank == kVictim) {
      std::shared_ptr<Transport>& gathers = tiers.gather_intra ? tiers.gather_intra : tiers.intra;
      gathers = damaging(gathers, "all_gather", damages);
    }
    return tiers;
  });
}

// Two ranks, of which one gets a damaged packet from some time on.
class DamageOnGpu : public EveryCodecOnGpu {
 protected:
  static constexpr size_t kRank = 1;  // the packet of rank 0 comes first

  void SetUp() override {
    run_ranks_well(2, [&](int rank) {
      calls_[rank] = prepare(world_, {{Collective::kAllReduce, 4000, kFloat32}}, rank);
    });
  }
  void enqueue(size_t rank) { run(world_.ranks[rank], calls_[rank], 1); }
  void synchronize() {
    for (const GpuWorld::Rank& rank : world_.ranks) {
      rank.gpu->synchronize();
    }
  }
  void reduce(bool damages) {
    damages_ = damages;
    enqueue(0);
    enqueue(1);
    synchronize();
  }
  KeyedCommunicator& communicator(size_t rank) { return *world_.ranks[rank].communicator; }

  std::atomic<bool> damages_ = false;
  std::shared_ptr<HookedTransport> damaged_tier_;
  GpuWorld world_{NodeMap::parse("2x1", 2), options(), GpuSettings{.wrap = [this](int rank, Tiers tiers) {
                    if (rank == kRank) {
                      tiers.inter = damaged_tier_ = damaging(tiers.inter, "all_to_all", damages_);
                    }
                    return tiers;
                  }}};
  std::vector<CallOnGpu> calls_[2];
};
INSTANTIATE_TEST_SUITE_P(Codecs, DamageOnGpu, ::testing::ValuesIn(codec_names()),
                         [](const auto& parameter) { return parameter.param; });

TEST_P(DamageOnGpu, IsSeenWithoutAnotherCollective) {
  reduce(/*damages=*/false);
  communicator(kRank).throw_if_faulted();
  reduce(/*damages=*/true);
  communicator(0).throw_if_faulted();
  EXPECT_THROW(communicator(kRank).throw_if_faulted(), PacketError);
}

// What never arrived does not decode, either, and a tier may learn only later that it failed.
TEST_P(DamageOnGpu, IsNotToldWhereTheTierFailsSoonAfter) {
  reduce(/*damages=*/true);
  int looks = 0;
  const auto fail_at_third_look = [&] { ISTHMUS_CHECK(TransportError, ++looks < 3, "rank 0 is lost"); };
  damaged_tier_->tell_failures(fail_at_third_look, kTimeout);
  const Outcome outcome = run_ranks(1, [&](int) { communicator(kRank).throw_if_faulted(); }).front();
  EXPECT_TRUE(outcome.threw<TransportError>()) << outcome.text;
  EXPECT_EQ(outcome.text, "rank 0 is lost");
}

TEST_P(DamageOnGpu, IsToldWhereNoTierFailsInTime) {
  reduce(/*damages=*/true);
  int looks = 0;
  damaged_tier_->tell_failures([&] { ++looks; }, milliseconds(50));
  EXPECT_THROW(communicator(kRank).throw_if_faulted(), PacketError);
  EXPECT_GT(looks, 1);
}

TEST_P(DamageOnGpu, IsSeenInAReplayOfAGraph) {
  reduce(/*damages=*/false);
  std::shared_ptr<EmulatedGraph> graphs[2];
  for (size_t r = 0; r < 2; ++r) {
    world_.ranks[r].gpu->begin_capture(world_.ranks[r].stream);
    enqueue(r);
    graphs[r] = world_.ranks[r].gpu->end_capture(world_.ranks[r].stream);
  }
  damages_ = true;
  communicator(kRank).throw_if_faulted();
  for (size_t r = 0; r < 2; ++r) {
    world_.ranks[r].gpu->replay(graphs[r], world_.ranks[r].stream);
  }
  synchronize();
  EXPECT_THROW(communicator(kRank).throw_if_faulted(), PacketError);
}

TEST_P(EveryCodecOnGpu, RanksOfOneNodeReduceTheSameUnit) {
  for (const Collective collective : {Collective::kReduceScatter, Collective::kAllReduce}) {
    expect_refused_units(NodeMap::parse("2x2", 4), options(), collective);
    expect_refused_units(NodeMap::parse("0,2|1,3", 4), options(), collective);
    expect_refused_units(NodeMap::parse("1x2", 2), options(), collective);
  }
}

// One unit, in which each rank has gradients of another parameter. No packets cross that would tell.
TEST_P(EveryCodecOnGpu, RanksOfOneNodeReduceTheSameParameters) {
  GpuWorld world(NodeMap::parse("1x2", 2), options());
  const UnitKey key{"unit", 8000, kFloat32, Collective::kReduceScatter, Sections({{0, 2000}, {1, 2000}}).hash()};
  const std::vector<Outcome> outcomes = run_ranks(2, [&](int number) {
    const GpuWorld::Rank& rank = world.ranks[number];
    const DeviceArray gradient(*rank.gpu, 4000, kFloat32);
    rank.gpu->clear(gradient.buffer(), rank.stream);
    const auto sections = std::make_shared<Sections>(std::vector<Section>{{number, 2000}});
    const Buffer shard = gradient.buffer().part(number, 2000);
    rank.communicator->reduce_scatter(gradient.buffer(), shard, {key, 1, {}, sections}, rank.stream);
    rank.gpu->synchronize();
    rank.communicator->throw_if_faulted();
  });
  for (const Outcome& outcome : outcomes) {
    EXPECT_NE(outcome.text.find(kWhyUnitsDiffer), std::string::npos) << outcome.text;
  }
}

TEST(FlatOnGpu, AllRanksReduceTheSameUnit) {
  expect_refused_units(NodeMap::parse("2x1", 2), flat_options(), Collective::kReduceScatter);
  expect_refused_units(NodeMap::parse("2x2", 4), flat_options(), Collective::kReduceScatter);
}

// In the tiers of reductions and in those of gathers.
TEST_P(EveryCodecOnGpu, AbortEndsWhatStreamsWaitFor) {
  for (const Collective collective : {Collective::kReduceScatter, Collective::kAllGather}) {
    GpuWorld world(NodeMap::parse("2x2", 4), options());
    const std::vector<Outcome> outcomes = run_ranks(4, [&](int rank) {
      if (rank == 3) {
        std::this_thread::sleep_for(milliseconds(20));  // let the others wait; correct without it, too
        world.ranks[3].communicator->abort();
        return;
      }
      repeat(world.ranks[rank], {collective, 4000, kFloat32}, rank, 4);
    });
    for (const int rank : {0, 1, 2}) {
      EXPECT_TRUE(outcomes[rank].threw<TransportError>()) << "rank " << rank << ": " << outcomes[rank].text;
      EXPECT_NE(outcomes[rank].text.find("aborted by rank"), std::string::npos) << outcomes[rank].text;
    }
  }
}

// One rank stands still where the first is gathered, while the second is exchanged; all callers wait for both.
TEST_P(EveryCodecOnGpu, AbortEndsTwoAllReducesThatAreUnderWay) {
  GpuWorld world(NodeMap::parse("2x2", 4), options());
  const std::vector<Call> calls = {{Collective::kAllReduce, 4000, kFloat32, 1, "a"},
                                   {Collective::kAllReduce, 2000, kFloat32, 1, "b"}};
  Mark released;
  const std::vector<Outcome> outcomes = run_ranks(4, [&](int rank) {
    const GpuWorld::Rank& own = world.ranks[rank];
    std::vector<CallOnGpu> prepared = prepare(world, calls, rank);
    if (rank == 3) {
      own.gpu->enqueue(own.gpu->lane(Lane::kGatherInter), "hold", {}, [&] { released.wait(); });
    }
    for (CallOnGpu& call : prepared) {
      call.start(*own.communicator, own.stream, own.other_stream);
      call.finish(own.stream);
    }
    if (rank == 3) {
      own.gpu->synchronize(own.gpu->lane(Lane::kEncode));
      own.communicator->abort();
      released.set();
    }
    own.gpu->synchronize();
    own.communicator->throw_if_faulted();
  });
  for (const int rank : {0, 1, 2}) {  // who gathers from a rank whose exchange has failed gets no packet
    EXPECT_TRUE(outcomes[rank].threw<TransportError>() || outcomes[rank].threw<PacketError>())
        << "rank " << rank << ": " << outcomes[rank].text;
    EXPECT_TRUE(world.ranks[rank].communicator->is_aborted()) << "rank " << rank;
  }
  EXPECT_TRUE(outcomes[3].threw<TransportError>());
}

}  // namespace
}  // namespace isthmus::test
