// The MPI transport: what every transport has to do (transport_suite.cpp) with cut messages, and faults. Ranks are
// processes that run the same tests side by side.
#include <gtest/gtest.h>
#include <mpi.h>

#include <chrono>
#include <cstdio>
#include <numeric>
#include <thread>
#include <vector>

#include "isthmus/error.h"
#include "isthmus/mpi.h"
#include "tests/cpp/support/error_of.h"
#include "tests/cpp/support/tier_under_test.h"
#include "transport/mpi.h"

namespace isthmus::test {
namespace {

using std::chrono::milliseconds;

int world_rank() {
  int rank = 0;
  MPI_Comm_rank(MPI_COMM_WORLD, &rank);
  return rank;
}

constexpr int kWorldSize = 4;
constexpr milliseconds kShortTimeout(200);
// Small ones leave at once, large ones once they are received.
constexpr int64_t kSmall = 100;
constexpr int64_t kLarge = 1 << 20;

std::shared_ptr<MpiTransport> whole_world(const MpiLimits& limits = {}) {
  return MpiTransport::create("test", MPI_COMM_WORLD, {0, 1, 2, 3}, {0, 0, 0, 0}, limits);
}

std::string exchange_bytes(Transport& transport, int64_t count = kSmall) {
  std::vector<uint8_t> sent(static_cast<size_t>(count * kWorldSize));
  std::vector<uint8_t> received(sent.size());
  return error_of<TransportError>([&] {
    transport
        .all_to_all({sent.data(), count * kWorldSize, DataType::kByte},
                    {received.data(), count * kWorldSize, DataType::kByte}, {})
        ->wait();
  });
}

// How many ranks hold that `condition`. Collective.
int count_ranks(bool condition) {
  int count = condition ? 1 : 0;
  MPI_Allreduce(MPI_IN_PLACE, &count, 1, MPI_INT, MPI_SUM, MPI_COMM_WORLD);
  return count;
}

// The first ranks of the world. Messages are cut, as if they were larger than 2^31 bytes: those of 10 float32 are not.
class MpiTier final : public TierUnderTest {
 public:
  explicit MpiTier(const std::vector<int>& node_of_rank) {
    if (world_rank() < static_cast<int>(node_of_rank.size())) {
      std::vector<int> ranks(node_of_rank.size());
      std::iota(ranks.begin(), ranks.end(), 0);
      transport_ = MpiTransport::create("test", MPI_COMM_WORLD, ranks, node_of_rank, {milliseconds(120000), 40});
    }
  }

  void run_well(const std::function<void(int, Transport&)>& body) override {
    if (transport_ != nullptr) {
      EXPECT_NO_THROW(body(world_rank(), *transport_));
    }
  }

 private:
  std::shared_ptr<MpiTransport> transport_;
};

TEST(MpiTransport, ManyExchangesReuseTags) {
  const auto transport = whole_world();
  for (int repeat = 0; repeat < 3000; ++repeat) {
    int mine = 4 * repeat + world_rank();
    int all[kWorldSize] = {};
    transport->all_gather({&mine, 4, DataType::kByte}, {all, 4 * kWorldSize, DataType::kByte}, {})->wait();
    for (int peer = 0; peer < kWorldSize; ++peer) {
      EXPECT_EQ(all[peer], 4 * repeat + peer);
    }
  }
}

TEST(MpiTransport, RanksThatDoNotComeAreNamed) {
  for (const int64_t count : {kSmall, kLarge}) {
    const auto transport = whole_world({kShortTimeout});
    std::string text;
    if (world_rank() == 1 || world_rank() == 3) {
      text = exchange_bytes(*transport, count);
      EXPECT_NE(text, "");
    }
    // Whoever times out first tells the other.
    EXPECT_GE(count_ranks(text == "test all-to-all: timed out after 200 ms: rank 0, 2 did not come"), 1) << text;
    EXPECT_NE(exchange_bytes(*transport, count).find("test all-to-all: "), std::string::npos) << "who comes too late";
  }
}

TEST(MpiTransport, TheDeadlineOfSeveralOperationsIsOne) {
  const auto transport = whole_world({milliseconds(120000)});
  transport->set_deadline(Clock::now() + kShortTimeout);
  if (world_rank() == 0) {
    EXPECT_NE(exchange_bytes(*transport).find("timed out after "), std::string::npos);
  }
  MPI_Barrier(MPI_COMM_WORLD);
}

// Long before the limit. Whoever sees it first tells the others.
TEST(MpiTransport, ARankThatCallsSomethingElseIsNamed) {
  const auto transport = whole_world();
  std::vector<uint8_t> in(kSmall * kWorldSize);
  std::vector<uint8_t> out(in.size());
  const ConstBuffer whole{in.data(), kSmall * kWorldSize, DataType::kByte};
  const Buffer result{out.data(), kSmall * kWorldSize, DataType::kByte};
  const std::string text = error_of<TransportError>([&] {
    if (world_rank() == 2) {
      transport->all_gather(whole.part(0, kSmall), result, {})->wait();
    } else {
      transport->all_to_all(whole, result, {})->wait();
    }
  });
  EXPECT_NE(text, "");
  const bool named =
      text == "test all-to-all: rank 2 calls all-gather of byte and sends 100 bytes, which fit nothing here" ||
      text == "test all-gather: rank 0 calls all-to-all of byte and sends 100 bytes, which fit nothing here";
  EXPECT_GE(count_ranks(named), 1) << text;
}

TEST(MpiTransport, SizesThatDifferAreAnErrorOnEveryRank) {
  for (const int64_t more : {-1, 1, 400}) {
    const auto transport = whole_world();
    const std::string text = exchange_bytes(*transport, world_rank() == 2 ? kSmall + more : kSmall);
    EXPECT_NE(text, "") << more;
    EXPECT_GE(count_ranks(text.find(" bytes, which fit nothing here") != std::string::npos), 1) << text;
  }
}

TEST(MpiTransport, AbortReachesRanksThatWaitAndRanksThatComeLater) {
  for (const int64_t count : {kSmall, kLarge}) {
    const auto transport = whole_world();
    if (world_rank() == 1) {
      transport->abort();
    }
    if (world_rank() == 3) {
      std::this_thread::sleep_for(kShortTimeout);
    }
    EXPECT_EQ(exchange_bytes(*transport, count), "test all-to-all: aborted by rank 1");
    EXPECT_EQ(exchange_bytes(*transport, count), "test all-to-all: aborted by rank 1") << "for good";
    MPI_Barrier(MPI_COMM_WORLD);
  }
}

TEST(MpiTransport, AbortFromAnotherThreadEndsAWait) {
  const auto transport = whole_world();
  if (world_rank() == 0) {
    std::thread aborter([&] {
      std::this_thread::sleep_for(milliseconds(50));
      transport->abort();
    });
    EXPECT_EQ(exchange_bytes(*transport), "test all-to-all: aborted by rank 0");
    aborter.join();
  }
  MPI_Barrier(MPI_COMM_WORLD);
}

TEST(MpiTransport, AnOperationThatNobodyWaitsForFailsOnEveryRank) {
  const auto transport = whole_world();
  std::vector<uint8_t> data(kSmall * kWorldSize);
  const Buffer all{data.data(), kSmall * kWorldSize, DataType::kByte};
  if (world_rank() == 2) {
    transport->all_gather(all.part(2, kSmall), all, {}).reset();
    EXPECT_EQ(exchange_bytes(*transport), "test all-to-all: an operation was given up before its end");
  } else {
    const std::string text = error_of<TransportError>([&] {
      transport->all_gather(all.part(world_rank(), kSmall), all, {})->wait();
      transport->all_gather(all.part(world_rank(), kSmall), all, {})->wait();
    });
    EXPECT_NE(text.find("test all-gather: aborted by rank "), std::string::npos) << text;
  }
  MPI_Barrier(MPI_COMM_WORLD);
}

TEST(MpiTransport, TiersOfOneRankAreMissing) {
  const Tiers one_rank_a_node = mpi_tiers(MPI_COMM_WORLD, NodeMap::parse("4x1", kWorldSize));
  EXPECT_EQ(one_rank_a_node.intra, nullptr);
  EXPECT_EQ(one_rank_a_node.inter->size(), kWorldSize);
  const Tiers one_node = mpi_tiers(MPI_COMM_WORLD, NodeMap::parse("1x4", kWorldSize));
  EXPECT_EQ(one_node.inter, nullptr);
  EXPECT_EQ(one_node.intra->size(), kWorldSize);
}

TEST(MpiTransport, RanksOfOneHostAreOneNode) {
  EXPECT_EQ(mpi_node_map(MPI_COMM_WORLD).to_string(), "1 node x 4 ranks, in blocks");
}

TEST(MpiTransport, MapsAndLimitsThatDoNotFitAreNamed) {
  const auto error_of = [](const NodeMap& map, const MpiLimits& limits) {
    return test::error_of([&] { mpi_tiers(MPI_COMM_WORLD, map, limits); });
  };
  EXPECT_EQ(error_of(NodeMap({0, 1}), {}), "a node map of 2 ranks for a communicator of 4");
  EXPECT_EQ(error_of(NodeMap({0, 1, 1, 1}), {}),
            "nodes 0|1,2,3: the two-tier paths need equally many ranks on every node");
  EXPECT_EQ(error_of(NodeMap({0, 0, 1, 1}), {milliseconds(0)}), "intra tier: a timeout of 0 ms");
  for (const int64_t bytes : {int64_t{0}, int64_t{1} << 31}) {
    EXPECT_EQ(error_of(NodeMap({0, 0, 1, 1}), {milliseconds(1), bytes}),
              "intra tier: messages of at most " + std::to_string(bytes) + " bytes: expected 1 to 2^31 - 1");
  }
}

// Rank 0 prints which tests run, and every rank its failures. Where a test ends ranks wait for each other.
class FailuresOfThisRank final : public testing::EmptyTestEventListener {
  void OnTestPartResult(const testing::TestPartResult& result) override {
    if (result.failed() && world_rank() != 0) {
      const char* file = result.file_name() == nullptr ? "" : result.file_name();
      std::fprintf(stderr, "on rank %d: %s:%d: %s\n", world_rank(), file, result.line_number(), result.message());
    }
  }
  void OnTestEnd(const testing::TestInfo& /*test*/) override { MPI_Barrier(MPI_COMM_WORLD); }
};

// Any rank's failure is one of all.
int run_in_every_process() {
  testing::TestEventListeners& listeners = testing::UnitTest::GetInstance()->listeners();
  if (world_rank() != 0) {
    delete listeners.Release(listeners.default_result_printer());
  }
  listeners.Append(new FailuresOfThisRank);  // gtest deletes it
  int failed = RUN_ALL_TESTS();
  MPI_Allreduce(MPI_IN_PLACE, &failed, 1, MPI_INT, MPI_MAX, MPI_COMM_WORLD);
  return failed;
}

}  // namespace

int max_ranks() { return kWorldSize; }

std::unique_ptr<TierUnderTest> make_tier(const std::vector<int>& node_of_rank) {
  return std::make_unique<MpiTier>(node_of_rank);
}

}  // namespace isthmus::test

int main(int argc, char** argv) {
  int level = MPI_THREAD_SINGLE;
  MPI_Init_thread(&argc, &argv, MPI_THREAD_MULTIPLE, &level);
  testing::InitGoogleTest(&argc, argv);
  const int failed = isthmus::test::run_in_every_process();
  MPI_Finalize();
  return failed;
}
