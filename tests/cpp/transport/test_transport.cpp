// The in-process transport, which tests stand on: what every transport has to do (transport_suite.cpp).
#include <gtest/gtest.h>

#include <chrono>
#include <functional>
#include <memory>
#include <numeric>
#include <string>
#include <vector>

#include "tests/cpp/support/error_of.h"
#include "tests/cpp/support/in_process.h"
#include "tests/cpp/support/ranks.h"
#include "tests/cpp/support/tier_under_test.h"

namespace isthmus::test {
namespace {

// All ranks in one tier.
std::vector<std::shared_ptr<Transport>> endpoints(const std::vector<int>& node_of_rank) {
  InProcessHub hub(node_of_rank, std::chrono::minutes(2));
  std::vector<int> ranks(node_of_rank.size());
  std::iota(ranks.begin(), ranks.end(), 0);
  std::vector<std::shared_ptr<Transport>> tier;
  for (const int rank : ranks) {
    tier.push_back(hub.transport("test", ranks, rank));
  }
  return tier;  // the hub is gone: transports keep what they need
}

// Ranks are threads.
class InProcessTier final : public TierUnderTest {
 public:
  explicit InProcessTier(const std::vector<int>& node_of_rank) : transports_(endpoints(node_of_rank)) {}

  void run_well(const std::function<void(int, Transport&)>& body) override {
    run_ranks_well(static_cast<int>(transports_.size()), [&](int rank) { body(rank, *transports_[rank]); });
  }

 private:
  std::vector<std::shared_ptr<Transport>> transports_;
};

// Types and sizes are equal: only the calls differ.
TEST(InProcess, RanksWithDifferentCallsGetAnErrorThatNamesBoth) {
  const auto tier = endpoints({0, 1});
  std::vector<std::string> errors(tier.size());
  run_ranks_well(static_cast<int>(tier.size()), [&](int rank) {
    std::vector<float> values(8);
    std::vector<float> received(8);
    const Buffer in{values.data(), 8, DataType::kFloat32};
    const Buffer out{received.data(), 8, DataType::kFloat32};
    errors[rank] =
        error_of([&] { rank == 0 ? tier[rank]->all_to_all(in, out, {}) : tier[rank]->pass_on(in, out, {}); });
  });
  for (const std::string& error : errors) {
    EXPECT_EQ(error,
              "tier test: rank 0 calls all_to_all of 8 elements of float32, but rank 1 calls pass_on of 8 elements of "
              "float32");
  }
}

}  // namespace

int max_ranks() { return 5; }

std::unique_ptr<TierUnderTest> make_tier(const std::vector<int>& node_of_rank) {
  return std::make_unique<InProcessTier>(node_of_rank);
}

}  // namespace isthmus::test
