// The in-process transport: what every transport has to do (transport_suite.cpp), and its own errors.
#include <gtest/gtest.h>

#include <chrono>
#include <functional>
#include <memory>
#include <numeric>
#include <string>
#include <vector>

#include "isthmus/error.h"
#include "tests/cpp/support/ranks.h"
#include "tests/cpp/support/tier_under_test.h"
#include "tests/cpp/support/typed_data.h"
#include "transport/in_process.h"

namespace isthmus {
namespace {

using std::chrono::milliseconds;
using test::Array;
using test::Outcome;
using test::run_ranks;
using test::run_ranks_well;

constexpr milliseconds kShortTimeout(200);

// All ranks in one tier.
std::vector<std::shared_ptr<Transport>> endpoints(const std::vector<int>& node_of_rank,
                                                  milliseconds timeout = milliseconds(120000)) {
  InProcessHub hub(node_of_rank, timeout);
  std::vector<int> ranks(node_of_rank.size());
  std::iota(ranks.begin(), ranks.end(), 0);
  std::vector<std::shared_ptr<Transport>> tier;
  for (const int rank : ranks) {
    tier.push_back(hub.transport("test", ranks, rank));
  }
  return tier;  // the hub is gone: transports keep what they need
}
std::vector<std::shared_ptr<Transport>> endpoints(int size, milliseconds timeout = milliseconds(120000)) {
  return endpoints(std::vector<int>(static_cast<size_t>(size), 0), timeout);
}

// Ranks are threads.
class InProcessTier final : public test::TierUnderTest {
 public:
  explicit InProcessTier(const std::vector<int>& node_of_rank) : transports_(endpoints(node_of_rank)) {}

  void run_well(const std::function<void(int, Transport&)>& body) override {
    run_ranks_well(static_cast<int>(transports_.size()), [&](int rank) { body(rank, *transports_[rank]); });
  }

 private:
  std::vector<std::shared_ptr<Transport>> transports_;
};

TEST(InProcessTransport, AMissingRankIsNamedByAllWhoWaited) {
  const auto tier = endpoints(4, kShortTimeout);
  const std::vector<Outcome> outcomes = run_ranks(4, [&](int rank) {
    if (rank == 0 || rank == 2) {
      return;
    }
    std::vector<uint8_t> data(3);
    tier[rank]->all_reduce({data.data(), 3, DataType::kByte}, ReduceOp::kSum, {})->wait();
  });
  for (const int rank : {1, 3}) {
    EXPECT_TRUE(outcomes[rank].threw<TransportError>());
    EXPECT_EQ(outcomes[rank].text,
              "tier test: all_reduce of 3 elements of byte timed out after 200 ms: rank 0, 2 did not come");
  }
  std::vector<uint8_t> data(3);
  EXPECT_THROW(tier[0]->all_reduce({data.data(), 3, DataType::kByte}, ReduceOp::kSum, {}), TransportError)
      << "who comes too late";
}

TEST(InProcessTransport, OperationsThatDifferAreAnErrorOnEveryRank) {
  constexpr DataType kFloat32 = DataType::kFloat32;
  const auto all_reduce = [](Transport& transport, int64_t count, DataType dtype, ReduceOp op = ReduceOp::kSum) {
    std::vector<double> data(static_cast<size_t>(count));
    transport.all_reduce({data.data(), count, dtype}, op, {})->wait();
  };
  struct Case {
    int size;
    std::function<void(bool is_last, Transport& transport)> call;
    const char* text;
  };
  const Case cases[] = {
      {3, [&](bool is_last, Transport& transport) { all_reduce(transport, is_last ? 5 : 4, kFloat32); },
       "rank 0 calls all_reduce of 4 elements of float32, but rank 2 calls all_reduce of 5 elements of float32"},
      {2,
       [&](bool is_last, Transport& transport) { all_reduce(transport, 4, is_last ? DataType::kBFloat16 : kFloat32); },
       "rank 0 calls all_reduce of 4 elements of float32, but rank 1 calls all_reduce of 4 elements of bfloat16"},
      {2,
       [&](bool is_last, Transport& transport) {
         all_reduce(transport, 4, DataType::kByte, is_last ? ReduceOp::kBitOr : ReduceOp::kSum);
       },
       "rank 0 calls all_reduce of 4 elements of byte, but rank 1 calls all_reduce (or) of 4 elements of byte"},
      {2,
       [&](bool is_last, Transport& transport) {
         Array in(4, kFloat32);
         Array out(is_last ? 4 : 2, kFloat32);
         is_last ? transport.all_to_all(in.view(), out.buffer(), {})
                 : transport.reduce_scatter(in.view(), out.buffer(), {});
       },
       "rank 0 calls reduce_scatter of 4 elements of float32, but rank 1 calls all_to_all of 4 elements of float32"}};
  for (const Case& each : cases) {
    const auto tier = endpoints(each.size);
    for (const Outcome& outcome :
         run_ranks(each.size, [&](int rank) { each.call(rank == each.size - 1, *tier[rank]); })) {
      EXPECT_TRUE(outcome.threw<TransportError>());
      EXPECT_EQ(outcome.text, std::string("tier test: ") + each.text);
    }
  }
}

TEST(InProcessTransport, AbortReachesRanksThatWaitAndRanksThatComeLater) {
  const auto tier = endpoints(3);
  const std::vector<Outcome> outcomes = run_ranks(3, [&](int rank) {
    if (rank == 1) {
      tier[1]->abort();
    }
    std::vector<uint8_t> data(3);
    tier[rank]->all_reduce({data.data(), 3, DataType::kByte}, ReduceOp::kSum, {})->wait();
  });
  for (const Outcome& outcome : outcomes) {
    EXPECT_TRUE(outcome.threw<TransportError>());
    EXPECT_EQ(outcome.text, "tier test: aborted by rank 1");
  }
}

TEST(InProcessTransport, AnIndexOutsideOfTheTierIsRefused) {
  InProcessHub hub(std::vector<int>{0, 0});
  EXPECT_THROW(hub.transport("test", {0, 1}, 2), Error);
}

}  // namespace

int test::max_ranks() { return 5; }

std::unique_ptr<test::TierUnderTest> test::make_tier(const std::vector<int>& node_of_rank) {
  return std::make_unique<InProcessTier>(node_of_rank);
}

}  // namespace isthmus
