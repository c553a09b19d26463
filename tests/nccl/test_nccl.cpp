// Tiers over NCCL: ranks are threads, each with a GPU. What their operations bring is seen by tests of communicators
// over them, tests/gpu/worlds/collectives.py.
#include <dlfcn.h>
#include <gtest/gtest.h>

#include <barrier>
#include <cstring>
#include <functional>
#include <future>
#include <string>
#include <thread>
#include <vector>

#include "isthmus/cuda.h"
#include "isthmus/error.h"
#include "isthmus/nccl.h"
#include "tests/cpp/support/error_of.h"
#include "tests/cpp/support/typed_data.h"
#include "transport/nccl.h"

namespace isthmus::test {
namespace {

constexpr int kRanks = 4;
constexpr std::chrono::seconds kTimeout(20);

// What rank 0's threads draw, for all.
class Blackboard {
 public:
  NcclBroadcast of(int rank) {
    return [this, rank](void* data, int64_t num_bytes) {
      if (rank == 0) {
        bytes_.assign(static_cast<std::byte*>(data), static_cast<std::byte*>(data) + num_bytes);
      }
      everybody_.arrive_and_wait();
      std::memcpy(data, bytes_.data(), static_cast<size_t>(num_bytes));
    };
  }

 private:
  std::barrier<> everybody_{kRanks};
  std::vector<std::byte> bytes_;
};

// One rank, for its thread.
struct GpuRank {
  int rank;
  std::shared_ptr<Device> device;
  Tiers tiers;

  // A copy on the GPU, which stays until the rank's end.
  Buffer put(const Array& array) { return arrays.emplace_back(*device, array.view()).buffer(); }
  std::vector<double> get(ConstBuffer buffer) const {
    Array array(buffer.num_elements, buffer.dtype);
    device->read(buffer, array.buffer());
    return array.values();
  }

  std::vector<DeviceArray> arrays;
};

// Runs body(rank) for four ranks at once. One that throws makes the test fail.
void run_ranks(const std::string& nodes, const std::function<void(GpuRank&)>& body) {
  const NodeMap map = NodeMap::parse(nodes, kRanks);
  Blackboard blackboard;
  std::vector<std::thread> threads;
  for (int rank = 0; rank < kRanks; ++rank) {
    threads.emplace_back([&, rank] {
      try {
        GpuRank self{rank, make_cuda_device(rank), nccl_tiers(rank, map, rank, blackboard.of(rank), kTimeout), {}};
        body(self);
      } catch (const std::exception& error) {
        ADD_FAILURE() << "rank " << rank << ": " << error.what();
      }
    });
  }
  for (std::thread& thread : threads) {
    thread.join();
  }
}

// Small integers: exact in every type, and sums too. Different for each rank and place.
double element(int rank, int64_t index) { return static_cast<double>((7 * rank + 3 * index) % 23 - 11); }

Array input_of(int rank, int64_t count, DataType dtype) {
  std::vector<double> values;
  for (int64_t i = 0; i < count; ++i) {
    values.push_back(element(rank, i));
  }
  return {values, dtype};
}

double sum_of_elements(int64_t index) {
  double sum = 0;
  for (int rank = 0; rank < kRanks; ++rank) {
    sum += element(rank, index);
  }
  return sum;
}

TEST(Nccl, TiersAreThoseOfTheNodeMap) {
  run_ranks("0,2|1,3", [](GpuRank& self) {
    for (const auto& [tier, rank] : {std::pair{self.tiers.intra, self.rank / 2},
                                     {self.tiers.gather_intra, self.rank / 2},
                                     {self.tiers.inter, self.rank % 2},
                                     {self.tiers.gather_inter, self.rank % 2}}) {
      ASSERT_NE(tier, nullptr);
      EXPECT_EQ(tier->rank(), rank);
      EXPECT_EQ(tier->size(), 2);
    }
    EXPECT_EQ(self.tiers.flat, nullptr);
    EXPECT_NE(self.tiers.intra, self.tiers.gather_intra);
  });
  run_ranks("1x4", [](GpuRank& self) { EXPECT_EQ(self.tiers.inter, nullptr); });
}

TEST(Nccl, ReduceScatterSumsInTheTypeAndFloat16IsDividedFirst) {
  run_ranks("1x4", [](GpuRank& self) {
    Transport& tier = *self.tiers.intra;
    for (const DataType dtype : kFloatingTypes) {
      EXPECT_EQ(tier.sum_type(dtype).dtype, dtype);
      const double divisor = tier.sum_type(dtype).divisor;
      EXPECT_EQ(divisor, dtype == DataType::kFloat16 ? kRanks : 1);
      for (const int64_t part : {0, 1, 13}) {
        const Buffer in = self.put(input_of(self.rank, kRanks * part, dtype));
        const Buffer out = self.put(Array(part, dtype));
        tier.reduce_scatter(in, out, {})->wait();
        std::vector<double> expected;
        for (int64_t i = 0; i < part; ++i) {
          expected.push_back(sum_of_elements(self.rank * part + i) / divisor);
        }
        EXPECT_EQ(self.get(out), expected) << to_string(dtype) << " part " << part;
      }
    }
  });
}

// As over MPI: parts go straight to their owners.
TEST(Nccl, TrafficIsWhatGoesToOtherRanks) {
  run_ranks("2x2", [](GpuRank& self) {
    for (const auto& [tier, is_inter] : {std::pair{self.tiers.intra, false}, {self.tiers.inter, true}}) {
      const Buffer whole = self.put(Array(2 * 10, DataType::kFloat32));
      const Buffer part = self.put(Array(10, DataType::kFloat32));
      int64_t expected = 0;
      const auto check = [&, &counted = *tier, inter = is_inter](int64_t bytes) {
        expected += bytes;
        EXPECT_EQ(counted.traffic().sent_bytes, expected);
        EXPECT_EQ(counted.traffic().inter_node_sent_bytes, inter ? expected : 0);
      };
      tier->reduce_scatter(whole, part, {});
      check(40);
      tier->all_gather(part, whole, {});
      check(40);
      tier->all_to_all(whole, self.put(Array(2 * 10, DataType::kFloat32)), {});
      check(40);
      tier->pass_on(part, self.put(Array(10, DataType::kFloat32)), {});
      check(40);
      self.get(whole);
    }
  });
}

// As over MPI: with links of both kinds around the ring, of which two edges leave a node.
TEST(Nccl, TheTierOfAllRanksCountsARing) {
  std::promise<ncclUniqueId> drawn;
  const std::shared_future<ncclUniqueId> id = drawn.get_future();
  run_ranks("2x2", [&](GpuRank& self) {
    const NodeMap map = NodeMap::parse("2x2", kRanks);
    const auto id_of = [&](const std::string& /*key*/, bool draws) {
      if (draws) {
        drawn.set_value(draw_nccl_id());
      }
      return id.get();
    };
    const auto tier = nccl_tiers_when_used(self.rank, map, map.all_ranks(), self.rank, id_of, kTimeout, true).flat;
    const Buffer whole = self.put(Array(4 * 10, DataType::kFloat32));
    const Buffer part = self.put(Array(10, DataType::kFloat32));
    tier->reduce_scatter(whole, part, {});
    tier->all_gather(part, whole, {});
    tier->pass_on(part, self.put(Array(10, DataType::kFloat32)), {});
    const int64_t expected = (3 + 3 + 1) * 40;
    EXPECT_EQ(tier->traffic().sent_bytes, expected);
    EXPECT_EQ(tier->traffic().inter_node_sent_bytes, self.rank % 2 == 1 ? expected : 0);
    tier->all_to_all(whole, self.put(Array(4 * 10, DataType::kFloat32)), {});
    EXPECT_EQ(tier->traffic().sent_bytes, expected + 3 * 40) << "straight to all";
    self.get(whole);
  });
}

TEST(Nccl, RefusesWrongSizesAndTypes) {
  run_ranks("1x4", [](GpuRank& self) {
    Transport& tier = *self.tiers.intra;
    const Buffer eight = self.put(Array(8, DataType::kFloat32));
    const Buffer three = self.put(Array(3, DataType::kFloat32));
    const Buffer wide = self.put(Array(2, DataType::kFloat64));
    EXPECT_THROW(tier.reduce_scatter(eight, three, {}), Error);
    EXPECT_THROW(tier.reduce_scatter(eight, wide, {}), Error);
    EXPECT_THROW(tier.all_to_all(three, three, {}), Error);
    EXPECT_THROW(tier.all_gather(three, eight, {}), Error);
    EXPECT_THROW(tier.all_gather(wide, eight, {}), Error);
    EXPECT_THROW(tier.pass_on(three, eight, {}), Error);
    const Buffer arrived = self.put(Array(3, DataType::kFloat32));
    tier.pass_on(three, arrived, {})->wait();  // it is still of use
    self.get(arrived);
  });
}

TEST(Nccl, OperationsAfterAnAbortFail) {
  run_ranks("1x4", [](GpuRank& self) {
    Transport& tier = *self.tiers.intra;
    const Buffer data = self.put(Array(8, DataType::kFloat32));
    const Buffer arrived = self.put(Array(8, DataType::kFloat32));
    std::thread([&] { tier.abort(); }).join();
    tier.abort();
    const std::string expected = "intra tier, rank " + std::to_string(self.rank) + ": aborted";
    EXPECT_EQ(error_of([&] { tier.pass_on(data, arrived, {}); }), expected);
    EXPECT_EQ(error_of([&] { tier.begin_group(); }), expected);
    EXPECT_EQ(error_of([&] { tier.throw_if_failed(); }), expected);
    self.tiers.gather_intra->throw_if_failed();
    self.tiers.gather_intra->pass_on(data, arrived, {})->wait();  // another tier
    self.get(data);
  });
}

TEST(Nccl, AnAbortInAGroupLeavesOtherTiersOfTheThreadUsable) {
  run_ranks("1x4", [](GpuRank& self) {
    const Buffer data = self.put(Array(8, DataType::kFloat32));
    const Buffer arrived = self.put(Array(8, DataType::kFloat32));
    self.tiers.intra->begin_group();
    self.tiers.intra->abort();
    EXPECT_THROW(self.tiers.intra->pass_on(data, arrived, {}), TransportError);
    self.tiers.intra->end_group();
    const Buffer sent = self.put(input_of(self.rank, 8, DataType::kFloat32));
    self.tiers.gather_intra->pass_on(sent, arrived, {})->wait();
    EXPECT_EQ(self.get(arrived), input_of((self.rank + 3) % 4, 8, DataType::kFloat32).values());
  });
}

// NCCL fails on demand over the stand-in alone: with a GPU run --gtest_filter=-NcclStandIn.*
TEST(NcclStandIn, AnErrorOfAnEarlierOperationIsThrownByTheNextCallAndBesideCalls) {
  const auto fail = reinterpret_cast<void (*)(int)>(dlsym(RTLD_DEFAULT, "fake_nccl_fail"));
  ASSERT_NE(fail, nullptr);
  std::barrier<> everybody(kRanks);  // it fails the communicators of all ranks, which are threads here
  run_ranks("2x2", [&](GpuRank& self) {
    const Buffer data = self.put(Array(8, DataType::kFloat32));
    const Buffer arrived = self.put(Array(8, DataType::kFloat32));
    self.tiers.inter->pass_on(data, arrived, {})->wait();
    self.get(data);
    everybody.arrive_and_wait();
    fail(kInterMaxCtas);
    const std::string expected =
        "inter tier, rank " + std::to_string(self.rank) +
        ": an earlier operation: remote error of the fake NCCL: a failure that a test asked for";
    EXPECT_EQ(error_of([&] { self.tiers.inter->throw_if_failed(); }), expected);
    EXPECT_EQ(error_of([&] { self.tiers.inter->pass_on(data, arrived, {}); }), expected);
    self.tiers.intra->throw_if_failed();
    self.tiers.inter->abort();
    self.tiers.gather_inter->abort();
  });
}

TEST(Nccl, WaitsForMissingRanksAreBounded) {
  const NodeMap map = NodeMap::parse("1x4", kRanks);
  const auto keep = [](void* /*data*/, int64_t /*num_bytes*/) {};
  EXPECT_EQ(error_of([&] { nccl_tiers(0, map, 0, keep, std::chrono::milliseconds(50)); }),
            "intra tier, rank 0: timed out after 50 ms: not all of its 4 ranks came");
}

TEST(Nccl, RefusesRanksAndMapsThatDoNotFit) {
  const auto keep = [](void* /*data*/, int64_t /*num_bytes*/) {};
  EXPECT_THROW(nccl_tiers(4, NodeMap::parse("1x4", kRanks), 0, keep), Error);
  EXPECT_THROW(nccl_tiers(0, NodeMap::parse("0,1,2|3", kRanks), 0, keep), OptionError);
}

}  // namespace
}  // namespace isthmus::test
