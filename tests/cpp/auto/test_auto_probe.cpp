// What the probe finds out, by clocks that the tests move: nothing here depends on how fast this machine is.
#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <memory>
#include <set>
#include <string>
#include <vector>

#include "auto/probe.h"
#include "isthmus/error.h"
#include "tests/cpp/auto/candidates.h"
#include "tests/cpp/support/hooked_transport.h"
#include "tests/cpp/support/world.h"

namespace isthmus::test {
namespace {

// 50 Mbit/s, of which two ranks share.
constexpr double kSlow = 50e6 / 8 / 2;

void alone(std::vector<double>& /*values*/) {}

// A link that takes as long as a test says, by the clock of one rank.
class Link {
 public:
  explicit Link(double latency_s, double bytes_per_s) : latency_s_(latency_s), bytes_per_s_(bytes_per_s) {}

  void send(int64_t bytes) {
    const double sent = std::max(0.0, static_cast<double>(bytes) - burst_bytes);
    burst_bytes -= static_cast<double>(bytes) - sent;
    ++operations;
    if (operations != free_operation) {
      now_s += latency_s_ + sent / bytes_per_s_;
    }
    if (hiccups.count(operations) > 0) {
      now_s += 1;
    }
  }

  double now_s = 0;
  int operations = 0;
  std::set<int> hiccups;   // the operations in which something else takes a second
  int free_operation = 0;  // the one that takes no time; 0: none
  double burst_bytes = 0;  // that pass at once

 private:
  double latency_s_;
  double bytes_per_s_;
};

Speed probed(Link& link, const ProbeLimits& limits = {}) {
  return probe_speed([&link](int64_t bytes) { link.send(bytes); }, alone, [&link] { return link.now_s; }, limits);
}

TEST(ProbeSpeed, FindsLatencyAndSpeed) {
  for (const double bytes_per_s : {kSlow, 1e8, 1e10, 1e12}) {
    for (const double latency_s : {0.0, 1e-6, 1e-3}) {
      Link link(latency_s, bytes_per_s);
      const Speed speed = probed(link);
      EXPECT_NEAR(speed.bytes_per_s, bytes_per_s, 1e-3 * bytes_per_s) << latency_s;
      EXPECT_NEAR(speed.latency_s, latency_s, 1e-7) << bytes_per_s;
    }
  }
}

TEST(ProbeSpeed, TakesAFractionOfASecondOnASlowLink) {
  Link link(1e-3, kSlow);
  probed(link);
  EXPECT_LT(link.now_s, .3);
  Link slower(1e-3, kSlow / 100);  // one size alone
  probed(slower);
  EXPECT_LT(slower.now_s, 1);
}

TEST(ProbeSpeed, SeesThroughABurstThatPassesAtOnce) {
  Link link(1e-4, kSlow);
  link.burst_bytes = 128 << 10;
  EXPECT_NEAR(probed(link).bytes_per_s, kSlow, .05 * kSlow);
  EXPECT_LT(link.now_s, .3);
}

TEST(ProbeSpeed, IgnoresHiccupsInMostRepeats) {
  Link undisturbed(1e-4, 1e8);
  probed(undisturbed);
  const int last = undisturbed.operations;
  for (const int first_hiccup : {1, 2, 3, last - 4, last - 3, last - 2}) {
    Link link(1e-4, 1e8);
    link.hiccups = {first_hiccup, first_hiccup + 1, first_hiccup + 2};
    EXPECT_NEAR(probed(link).bytes_per_s, 1e8, 1e5) << "from operation " << first_hiccup;
  }
}

TEST(ProbeSpeed, IgnoresOneRunThatIsTooFast) {
  Link undisturbed(1e-4, 1e8);
  probed(undisturbed);
  for (int i = 0; i < 5; ++i) {
    Link link(1e-4, 1e8);
    link.free_operation = undisturbed.operations - i;
    EXPECT_NEAR(probed(link).bytes_per_s, 1e8, 1e5) << i;
  }
}

TEST(ProbeSpeed, IsFiniteWhereTimesSayNothing) {
  Link instant(0, 1e30);
  const Speed speed = probed(instant);
  EXPECT_TRUE(speed.known());
  EXPECT_TRUE(std::isfinite(speed.bytes_per_s));
  EXPECT_EQ(speed.latency_s, 0);
  ProbeLimits one_size;
  one_size.largest_bytes = one_size.smallest_bytes;
  Link link(1e-3, 1e6);
  EXPECT_TRUE(probed(link, one_size).known());
}

// Every rank's tiers, over links of its own clock: intra and inter.
class ProbedWorld {
 public:
  explicit ProbedWorld(const NodeMap& node_map, milliseconds timeout = kTimeout)
      : map(node_map), hub(map, timeout), now_s(map.world_size()) {}

  Tiers tiers(int rank, Speed intra, Speed inter) {
    Tiers tiers = hub.tiers(map, rank);
    tiers.intra = hooked(tiers.intra, rank, intra);
    tiers.inter = hooked(tiers.inter, rank, inter);
    return tiers;
  }
  ProbeClock clock(int rank) {
    return [this, rank] { return now_s[rank]; };
  }

  NodeMap map;
  InProcessHub hub;
  std::vector<double> now_s;

 private:
  std::shared_ptr<Transport> hooked(const std::shared_ptr<Transport>& tier, int rank, Speed speed) {
    if (tier == nullptr) {
      return nullptr;
    }
    const auto before = [this, rank, speed, size = tier->size()](const std::string& operation, ConstBuffer in) {
      const double sent = operation == "all_gather" ? (size - 1.0) * in.bytes() : (size - 1.0) / size * in.bytes();
      now_s[rank] += speed.seconds(sent);
    };
    return std::make_shared<HookedTransport>(tier, before, HookedTransport::After());
  }
};

std::vector<LinkSpeeds> probe_all(ProbedWorld& world, const std::function<Speed(int rank)>& intra,
                                  const std::function<Speed(int rank)>& inter, const Options& options = {}) {
  std::vector<LinkSpeeds> found(static_cast<size_t>(world.map.world_size()));
  run_ranks_well(world.map.world_size(), [&](int rank) {
    const auto device = make_host_device();
    found[rank] = probe_tiers(world.tiers(rank, intra(rank), inter(rank)), *device, DataType::kBFloat16, options,
                              world.clock(rank));
  });
  return found;
}

bool same(Speed a, Speed b) { return a.latency_s == b.latency_s && a.bytes_per_s == b.bytes_per_s; }

const Speed kFast{2e-5, 2e9};
const Speed kSlowLink{1e-4, kSlow};

TEST(ProbeTiers, FindsBothTiersAlikeOnAllRanks) {
  for (const char* nodes : {"2x2", "0,3|1,2", "4x3", "2x1"}) {
    const int world_size = std::string(nodes) == "4x3" ? 12 : std::string(nodes) == "2x1" ? 2 : 4;
    ProbedWorld world(NodeMap::parse(nodes, world_size));
    const auto found = probe_all(
        world, [](int) { return kFast; }, [](int) { return kSlowLink; });
    for (const LinkSpeeds& links : found) {
      EXPECT_NEAR(links.inter.bytes_per_s, kSlow, .01 * kSlow) << nodes;
      EXPECT_NEAR(links.inter.latency_s, 1e-4, 2e-5) << nodes;
      EXPECT_TRUE(same(links.inter, found[0].inter));
      EXPECT_TRUE(same(links.intra_reduce, found[0].intra_reduce));
      EXPECT_TRUE(same(links.intra_gather, found[0].intra_gather));
      EXPECT_FALSE(links.world_reduce.known());
      if (world.map.ranks_per_node() > 1) {
        EXPECT_NEAR(links.intra_reduce.bytes_per_s, 2e9, 2e7) << nodes;
        EXPECT_NEAR(links.intra_gather.bytes_per_s, 2e9, 2e7) << nodes;
      } else {
        EXPECT_FALSE(links.intra_reduce.known());
      }
    }
  }
}

TEST(ProbeTiers, TheSlowestRankCounts) {
  ProbedWorld world(NodeMap::parse("2x2", 4));
  const auto found = probe_all(
      world, [](int) { return kFast; }, [](int rank) { return rank == 2 ? kSlowLink : kFast; });
  for (const LinkSpeeds& links : found) {
    EXPECT_NEAR(links.inter.bytes_per_s, kSlow, .01 * kSlow);
    EXPECT_TRUE(same(links.inter, found[0].inter));
  }
}

TEST(ProbeTiers, ClocksThatDifferDoNotMatter) {
  ProbedWorld world(NodeMap::parse("2x2", 4));
  for (int rank = 0; rank < 4; ++rank) {
    world.now_s[rank] = 1e3 * rank;
  }
  const auto found = probe_all(
      world, [](int) { return kFast; }, [](int) { return kSlowLink; });
  EXPECT_NEAR(found[3].inter.bytes_per_s, kSlow, .01 * kSlow);
}

TEST(ProbeTiers, MeasuresNothingThatIsGiven) {
  ProbedWorld world(NodeMap::parse("2x2", 4));
  Options options;
  options.inter_gbit = .2;
  options.intra_gbit = 16;
  const auto found = probe_all(
      world,
      [](int) {
        return Speed{1, 1};
      },
      [](int) {
        return Speed{1, 1};
      },
      options);
  EXPECT_EQ(*std::max_element(world.now_s.begin(), world.now_s.end()), 0);
  EXPECT_DOUBLE_EQ(found[0].inter.bytes_per_s, .2e9 / 8 / 2);  // two ranks share it
  EXPECT_DOUBLE_EQ(found[0].intra_reduce.bytes_per_s, 2e9);
  EXPECT_DOUBLE_EQ(found[0].intra_gather.bytes_per_s, 2e9);
}

TEST(ProbeTiers, FailsWhereATierFails) {
  ProbedWorld world(NodeMap::parse("2x2", 4), kShortTimeout);
  const auto outcomes = run_ranks(4, [&](int rank) {
    const auto device = make_host_device();
    Tiers tiers = world.tiers(rank, kFast, kSlowLink);
    if (rank == 3) {
      tiers.inter->abort();
    }
    probe_tiers(tiers, *device, DataType::kFloat32, {}, world.clock(rank));
  });
  EXPECT_TRUE(outcomes[1].threw<TransportError>()) << outcomes[1].text;
  EXPECT_TRUE(outcomes[3].threw<TransportError>()) << outcomes[3].text;
}

TEST(Agreement, IsTheLargestOrTheSumOfAllRanks) {
  for (const char* nodes : {"2x2", "4x1", "1x4", "0,2|1,3"}) {
    const NodeMap map = NodeMap::parse(nodes, 4);
    InProcessHub hub(map, kTimeout);
    run_ranks_well(4, [&](int rank) {
      const auto device = make_host_device();
      std::vector<double> values = {static_cast<double>(rank), -static_cast<double>(rank), 7};
      max_over_tiers(hub.tiers(map, rank), *device, values);
      EXPECT_EQ(values, (std::vector<double>{3, 0, 7})) << nodes;
      values = {1, static_cast<double>(rank), .1 * rank};
      sum_over_tiers(hub.tiers(map, rank), *device, values);
      EXPECT_EQ(values[0], 4) << nodes;
      EXPECT_EQ(values[1], 6) << nodes;
      EXPECT_DOUBLE_EQ(values[2], .6) << nodes;
    });
  }
}

TEST(ProbeCodecs, MeasuresWhatTheBudgetAllows) {
  const auto device = make_host_device();
  Options options;
  options.codec = "auto";
  ProbeLimits limits;
  limits.sample_elements = 4097;
  for (const DataType dtype : {DataType::kFloat32, DataType::kBFloat16, DataType::kFloat16}) {
    options.error_budget = 1e-6;
    const auto exact = probe_codecs(*device, dtype, 2, options, alone, steady_clock(), limits);
    for (const Candidate candidate : candidates()) {
      EXPECT_EQ(exact[candidate].known(), candidate == Candidate::kNone) << to_string(candidate);
    }
    options.error_budget = 1;
    EXPECT_TRUE(probe_codecs(*device, dtype, 2, options, alone, steady_clock(), limits)[named("tagc")].known());
  }
}

TEST(ProbeCodecs, Float64IsExact) {
  const auto device = make_host_device();
  Options options;
  options.codec = "auto";
  ProbeLimits limits;
  limits.sample_elements = 4097;
  for (const double budget : {options.error_budget, 1.0}) {
    options.error_budget = budget;
    const auto speeds = probe_codecs(*device, DataType::kFloat64, 2, options, alone, steady_clock(), limits);
    for (const Candidate candidate : candidates()) {
      EXPECT_EQ(speeds[candidate].known(), candidate == Candidate::kNone) << to_string(candidate);
    }
  }
}

// By the slowest rank's times, which come back from all.
TEST(ProbeCodecs, AreAsFastAsTheirFastestRun) {
  const auto device = make_host_device();
  Options options;
  options.codec = "auto";
  ProbeLimits limits;
  limits.sample_elements = 1000;
  const auto one_run_of_a_millisecond = [](std::vector<double>& seconds) {
    std::fill(seconds.begin(), seconds.end(), 1);
    seconds.back() = 1e-3;
  };
  const auto speeds =
      probe_codecs(*device, DataType::kFloat32, 1, options, one_run_of_a_millisecond, steady_clock(), limits);
  EXPECT_DOUBLE_EQ(speeds[Candidate::kNone].encode_elements_per_s, 1e6);
  EXPECT_DOUBLE_EQ(speeds[quant(4)].decode_elements_per_s, 1e6);
}

}  // namespace
}  // namespace isthmus::test
