// What every transport has to do. Linked into the executable of each of them.
#include <gtest/gtest.h>

#include <functional>
#include <string>
#include <vector>

#include "isthmus/error.h"
#include "tests/cpp/support/error_of.h"
#include "tests/cpp/support/tier_under_test.h"
#include "tests/cpp/support/typed_data.h"

namespace isthmus::test {
namespace {

std::vector<int> one_node(int size) { return std::vector<int>(static_cast<size_t>(size), 0); }

// Of every size on one node, and one with links of both kinds, which uses a ring. body(size, tier).
void on_each_tier(const std::function<void(int, TierUnderTest&)>& body) {
  body(4, *make_tier({0, 0, 1, 1}));
  for (int size = 1; size <= max_ranks(); ++size) {
    body(size, *make_tier(one_node(size)));
  }
}

// Small integers: exact in every type, and sums of five of them too. Different for each rank and place.
double element(int rank, int64_t index) { return static_cast<double>((7 * rank + 3 * index) % 23 - 11); }

Array make_input(int rank, int64_t count, DataType dtype) {
  std::vector<double> values;
  for (int64_t i = 0; i < count; ++i) {
    values.push_back(element(rank, i));
  }
  return {values, dtype};
}

TEST(Transport, ReduceScatterSumsThePartOfEachRank) {
  on_each_tier([&](int size, TierUnderTest& tier) {
    for (const DataType dtype : kFloatingTypes) {
      for (const int64_t part : {0, 1, 13}) {
        tier.run_well([&](int rank, Transport& transport) {
          const Array in = make_input(rank, size * part, dtype);
          Array out(part, accumulate_dtype(dtype));
          transport.reduce_scatter(in.view(), out.buffer(), {})->wait();
          std::vector<double> expected;
          for (int64_t i = 0; i < part; ++i) {
            expected.push_back(0);
            for (int peer = 0; peer < size; ++peer) {
              expected.back() += element(peer, rank * part + i);
            }
          }
          EXPECT_EQ(out.values(), expected) << to_string(dtype) << " size " << size << " part " << part;
        });
      }
    }
  });
}

TEST(Transport, RanksWithOtherUnitsAreNamedAndNothingIsCounted) {
  on_each_tier([&](int size, TierUnderTest& tier) {
    tier.run_well([&](int rank, Transport& transport) {
      transport.compare_units(7, "a")->wait();
      std::string others = "unit \"b\": rank ";
      for (int peer = 1; peer < size; ++peer) {
        others += (peer == 1 ? "" : ", rank ") + std::to_string(peer);
      }
      const std::string error =
          error_of([&] { transport.compare_units(rank == 0 ? uint64_t{1} << 63 : 7, rank == 0 ? "b" : "a")->wait(); });
      const std::string expected = rank == 0 ? others : "unit \"a\": rank 0";
      EXPECT_TRUE(size == 1 ? error.empty() : error.starts_with(expected + " reduces another unit")) << error;
      EXPECT_EQ(transport.traffic().sent_bytes, 0);
    });
  });
}

TEST(Transport, AllToAllExchangesAllPartsButTheOwn) {
  on_each_tier([&](int size, TierUnderTest& tier) {
    for (const int64_t part : {0, 1, 13}) {
      tier.run_well([&](int rank, Transport& transport) {
        const Array in = make_input(rank, size * part, DataType::kFloat32);
        Array out(size * part, DataType::kFloat32);
        transport.all_to_all(in.view(), out.buffer(), {})->wait();
        const std::vector<double> values = out.values();
        for (int peer = 0; peer < size; ++peer) {
          for (int64_t i = 0; peer != rank && i < part; ++i) {
            EXPECT_EQ(values[peer * part + i], element(peer, rank * part + i)) << "from " << peer << " to " << rank;
          }
        }
      });
    }
  });
}

TEST(Transport, AllGatherAlsoOutOfThePartItWrites) {
  on_each_tier([&](int size, TierUnderTest& tier) {
    for (const int64_t part : {0, 1, 13}) {
      for (const bool in_place : {false, true}) {
        tier.run_well([&](int rank, Transport& transport) {
          const Array separate = make_input(rank, part, DataType::kBFloat16);
          Array out(size * part, DataType::kBFloat16);
          const Buffer own = out.buffer().part(rank, part);
          if (in_place) {
            convert(separate.view(), own);
          }
          transport.all_gather(in_place ? ConstBuffer(own) : separate.view(), out.buffer(), {})->wait();
          const std::vector<double> values = out.values();
          for (int peer = 0; peer < size; ++peer) {
            for (int64_t i = 0; i < part; ++i) {
              EXPECT_EQ(values[peer * part + i], element(peer, i));
            }
          }
        });
      }
    }
  });
}

TEST(Transport, PassOnGoesToTheNextRank) {
  on_each_tier([&](int size, TierUnderTest& tier) {
    if (size == 1) {
      return;
    }
    for (const int64_t count : {0, 1, 13}) {
      tier.run_well([&](int rank, Transport& transport) {
        const Array in = make_input(rank, count, DataType::kBFloat16);
        Array out(count, DataType::kBFloat16);
        transport.pass_on(in.view(), out.buffer(), {})->wait();
        EXPECT_EQ(out.values(), make_input((rank + size - 1) % size, count, DataType::kBFloat16).values());
      });
    }
  });
}

// Values for which another order gives another sum.
TEST(Transport, SumsAreTakenInRankOrder) {
  const auto tier = make_tier(one_node(3));
  const std::vector<float> values = {1e8f, -1e8f, 1};
  for (int repeat = 0; repeat < 20; ++repeat) {
    tier->run_well([&](int rank, Transport& transport) {
      const std::vector<float> in(3, values[rank]);
      float sum = 0;
      transport.reduce_scatter({in.data(), 3, DataType::kFloat32}, {&sum, 1, DataType::kFloat32}, {})->wait();
      EXPECT_EQ(sum, 1);
    });
  }
}

// Started together, waited for in order.
TEST(Transport, SeveralOperationsAreUnderWayAtOnce) {
  constexpr int kSize = 3;
  const auto on_tier = [](int rank, Transport& transport) {
    const Array in = make_input(rank, kSize * 5, DataType::kFloat32);
    Array sum(5, DataType::kFloat32);
    Array gathered(kSize * 5, DataType::kFloat32);
    Array exchanged(kSize * 5, DataType::kFloat32);
    const auto reducing = transport.reduce_scatter(in.view(), sum.buffer(), {});
    const auto gathering = transport.all_gather(in.view().part(0, 5), gathered.buffer(), {});
    const auto exchanging = transport.all_to_all(in.view(), exchanged.buffer(), {});
    reducing->wait();
    gathering->wait();
    exchanging->wait();
    for (int64_t i = 0; i < 5; ++i) {
      double expected = 0;
      for (int peer = 0; peer < kSize; ++peer) {
        expected += element(peer, 5 * rank + i);
        EXPECT_EQ(gathered.values()[5 * peer + i], element(peer, i));
        if (peer != rank) {
          EXPECT_EQ(exchanged.values()[5 * peer + i], element(peer, 5 * rank + i));
        }
      }
      EXPECT_EQ(sum.values()[i], expected);
    }
  };
  make_tier(one_node(kSize))->run_well(on_tier);
  make_tier({0, 1, 2})->run_well(on_tier);  // in rounds, and around a ring
}

TEST(Transport, TiersWithLinksOfOneKindSendStraight) {
  for (const auto& node_of_rank : {std::vector<int>{0, 0, 0, 0}, std::vector<int>{0, 1, 2, 3}}) {
    const auto tier = make_tier(node_of_rank);
    tier->run_well([&](int rank, Transport& transport) {
      const Array in = make_input(rank, 4 * 10, DataType::kBFloat16);
      Array sum(10, DataType::kFloat32);
      Array parts(4 * 10, DataType::kBFloat16);
      transport.reduce_scatter(in.view(), sum.buffer(), {})->wait();
      EXPECT_EQ(transport.traffic().sent_bytes, 3 * 10 * 2);
      transport.all_to_all(in.view(), parts.buffer(), {})->wait();
      EXPECT_EQ(transport.traffic().sent_bytes, 2 * 3 * 10 * 2);
      transport.all_gather(in.view().part(0, 10), parts.buffer(), {})->wait();
      EXPECT_EQ(transport.traffic().sent_bytes, 3 * 3 * 10 * 2);
      transport.pass_on(in.view().part(0, 10), parts.buffer().part(0, 10), {})->wait();
      const int64_t expected = (3 * 3 + 1) * 10 * 2;
      EXPECT_EQ(transport.traffic().sent_bytes, expected);
      EXPECT_EQ(transport.traffic().inter_node_sent_bytes, node_of_rank[3] == 0 ? 0 : expected);
    });
  }
}

TEST(Transport, TiersWithLinksOfBothKindsUseARing) {
  const auto tier = make_tier({0, 0, 1, 1});
  tier->run_well([&](int rank, Transport& transport) {
    const bool at_the_edge = rank == 1 || rank == 3;  // the next rank sits on the other node
    const Array in = make_input(rank, 4 * 10, DataType::kBFloat16);
    Array sum(10, DataType::kFloat32);
    Array parts(4 * 10, DataType::kBFloat16);
    transport.reduce_scatter(in.view(), sum.buffer(), {})->wait();
    int64_t expected = 3 * 10 * 4;  // partial sums travel as float32
    EXPECT_EQ(transport.traffic().sent_bytes, expected);
    transport.all_gather(in.view().part(0, 10), parts.buffer(), {})->wait();
    expected += 3 * 10 * 2;
    EXPECT_EQ(transport.traffic().sent_bytes, expected);
    transport.pass_on(in.view().part(0, 10), parts.buffer().part(0, 10), {})->wait();
    expected += 10 * 2;
    EXPECT_EQ(transport.traffic().sent_bytes, expected);
    EXPECT_EQ(transport.traffic().inter_node_sent_bytes, at_the_edge ? expected : 0);
    transport.all_to_all(in.view(), parts.buffer(), {})->wait();
    EXPECT_EQ(transport.traffic().inter_node_sent_bytes, (at_the_edge ? expected : 0) + 2 * 10 * 2);
  });
}

TEST(Transport, SizesThatDoNotFitAreRefused) {
  const auto tier = make_tier(one_node(2));
  tier->run_well([&](int /*rank*/, Transport& transport) {
    Array five(5, DataType::kFloat32);
    Array two(2, DataType::kFloat32);
    EXPECT_THROW(transport.reduce_scatter(five.view(), two.buffer(), {}), Error);
    EXPECT_THROW(transport.all_to_all(five.view(), five.buffer(), {}), Error);
    EXPECT_THROW(transport.all_gather(two.view(), five.buffer(), {}), Error);
    EXPECT_THROW(transport.pass_on(two.view(), five.buffer(), {}), Error);
    Array same(5, DataType::kFloat32);
    transport.pass_on(five.view(), same.buffer(), {})->wait();  // it is still usable
  });
}

}  // namespace
}  // namespace isthmus::test
