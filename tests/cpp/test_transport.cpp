#include <gtest/gtest.h>

#include <chrono>
#include <cstring>
#include <memory>
#include <numeric>
#include <vector>

#include "isthmus/error.h"
#include "isthmus/node_map.h"
#include "ranks.h"
#include "transport/in_process.h"
#include "typed_data.h"

namespace isthmus {
namespace {

using std::chrono::milliseconds;
using test::Array;
using test::kFloatingTypes;
using test::Outcome;
using test::run_ranks;
using test::run_ranks_well;

constexpr int kMaxRanks = 5;
constexpr milliseconds kShortTimeout(200);

// All ranks in one tier.
std::vector<std::shared_ptr<Transport>> make_tier(const std::vector<int>& node_of_rank,
                                                  milliseconds timeout = milliseconds(10000)) {
  InProcessHub hub(node_of_rank, timeout);
  std::vector<int> ranks(node_of_rank.size());
  std::iota(ranks.begin(), ranks.end(), 0);
  std::vector<std::shared_ptr<Transport>> tier;
  for (const int rank : ranks) {
    tier.push_back(hub.transport("test", ranks, rank));
  }
  return tier;  // the hub is gone: transports keep what they need
}
std::vector<std::shared_ptr<Transport>> make_tier(int size, milliseconds timeout = milliseconds(10000)) {
  return make_tier(std::vector<int>(static_cast<size_t>(size), 0), timeout);
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
  for (int size = 1; size <= kMaxRanks; ++size) {
    const auto tier = make_tier(size);
    for (const DataType dtype : kFloatingTypes) {
      for (const int64_t part : {0, 1, 13}) {
        run_ranks_well(size, [&](int rank) {
          const Array in = make_input(rank, size * part, dtype);
          Array out(part, accumulate_dtype(dtype));
          tier[rank]->reduce_scatter(in.view(), out.buffer(), {})->wait();
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
  }
}

TEST(Transport, AllToAllExchangesAllPartsButTheOwn) {
  for (int size = 1; size <= kMaxRanks; ++size) {
    const auto tier = make_tier(size);
    for (const int64_t part : {0, 1, 13}) {
      run_ranks_well(size, [&](int rank) {
        const Array in = make_input(rank, size * part, DataType::kFloat32);
        Array out(size * part, DataType::kFloat32);
        tier[rank]->all_to_all(in.view(), out.buffer(), {})->wait();
        const std::vector<double> values = out.values();
        for (int peer = 0; peer < size; ++peer) {
          for (int64_t i = 0; peer != rank && i < part; ++i) {
            EXPECT_EQ(values[peer * part + i], element(peer, rank * part + i)) << "from " << peer << " to " << rank;
          }
        }
      });
    }
  }
}

TEST(Transport, AllGatherAlsoOutOfThePartItWrites) {
  for (int size = 1; size <= kMaxRanks; ++size) {
    const auto tier = make_tier(size);
    for (const int64_t part : {0, 1, 13}) {
      for (const bool in_place : {false, true}) {
        run_ranks_well(size, [&](int rank) {
          const Array separate = make_input(rank, part, DataType::kBFloat16);
          Array out(size * part, DataType::kBFloat16);
          const Buffer own = out.buffer().part(rank, part);
          if (in_place) {
            convert(separate.view(), own);
          }
          tier[rank]->all_gather(in_place ? ConstBuffer(own) : separate.view(), out.buffer(), {})->wait();
          const std::vector<double> values = out.values();
          for (int peer = 0; peer < size; ++peer) {
            for (int64_t i = 0; i < part; ++i) {
              EXPECT_EQ(values[peer * part + i], element(peer, i));
            }
          }
        });
      }
    }
  }
}

TEST(Transport, AllReduceSumsFloats) {
  for (int size = 1; size <= kMaxRanks; ++size) {
    const auto tier = make_tier(size);
    for (const DataType dtype : kFloatingTypes) {
      run_ranks_well(size, [&](int rank) {
        Array data = make_input(rank, 17, dtype);
        tier[rank]->all_reduce(data.buffer(), ReduceOp::kSum, {})->wait();
        const std::vector<double> values = data.values();
        for (int64_t i = 0; i < 17; ++i) {
          double expected = 0;
          for (int peer = 0; peer < size; ++peer) {
            expected += element(peer, i);
          }
          EXPECT_EQ(values[i], expected);
        }
      });
    }
  }
}

TEST(Transport, AllReduceOfBytesWrapsOrJoinsBits) {
  const auto tier = make_tier(3);
  run_ranks_well(3, [&](int rank) {
    std::vector<uint8_t> sum = {200, static_cast<uint8_t>(rank)};
    tier[rank]->all_reduce({sum.data(), 2, DataType::kByte}, ReduceOp::kSum, {})->wait();
    EXPECT_EQ(sum, (std::vector<uint8_t>{600 % 256, 3}));
    std::vector<uint8_t> bits = {static_cast<uint8_t>(1 << rank), 0x80};
    tier[rank]->all_reduce({bits.data(), 2, DataType::kByte}, ReduceOp::kBitOr, {})->wait();
    EXPECT_EQ(bits, (std::vector<uint8_t>{7, 0x80}));
    float number = 1;
    EXPECT_THROW(tier[rank]->all_reduce({&number, 1, DataType::kFloat32}, ReduceOp::kBitOr, {}), Error);
  });
}

// Values for which another order gives another sum.
TEST(Transport, SumsAreTakenInRankOrder) {
  const auto tier = make_tier(3);
  const std::vector<float> values = {1e8f, -1e8f, 1};
  for (int repeat = 0; repeat < 20; ++repeat) {
    run_ranks_well(3, [&](int rank) {
      const std::vector<float> in(3, values[rank]);
      float sum = 0;
      tier[rank]->reduce_scatter({in.data(), 3, DataType::kFloat32}, {&sum, 1, DataType::kFloat32}, {})->wait();
      EXPECT_EQ(sum, 1);
      float all = values[(rank + 1) % 3];
      tier[rank]->all_reduce({&all, 1, DataType::kFloat32}, ReduceOp::kSum, {})->wait();
      EXPECT_EQ(all, -1e8f + 1 + 1e8f);
    });
  }
}

// Inputs are overwritten as soon as wait() returned: nobody may still be reading them.
TEST(Transport, ManyOperationsInARow) {
  constexpr int kSize = 4;
  const auto tier = make_tier(kSize);
  run_ranks_well(kSize, [&](int rank) {
    std::vector<float> data(64);
    std::vector<float> out(64);
    for (int repeat = 0; repeat < 300; ++repeat) {
      std::fill(data.begin(), data.end(), static_cast<float>(repeat + rank));
      tier[rank]->all_to_all({data.data(), 64, DataType::kFloat32}, {out.data(), 64, DataType::kFloat32}, {})->wait();
      std::fill(data.begin(), data.end(), -1);
      for (int peer = 0; peer < kSize; ++peer) {
        ASSERT_TRUE(peer == rank || out[16 * peer] == static_cast<float>(repeat + peer));
      }
    }
  });
}

TEST(Transport, TiersWithLinksOfOneKindSendStraight) {
  const auto within_node = make_tier(4);
  const auto along_rail = make_tier(std::vector<int>{0, 1, 2, 3});
  run_ranks_well(4, [&](int rank) {
    for (const auto& tier : {within_node[rank], along_rail[rank]}) {
      const Array in = make_input(rank, 4 * 10, DataType::kBFloat16);
      Array sum(10, DataType::kFloat32);
      Array parts(4 * 10, DataType::kBFloat16);
      tier->reduce_scatter(in.view(), sum.buffer(), {});
      EXPECT_EQ(tier->traffic().sent_bytes, 3 * 10 * 2);
      tier->all_to_all(in.view(), parts.buffer(), {});
      EXPECT_EQ(tier->traffic().sent_bytes, 2 * 3 * 10 * 2);
      tier->all_gather(in.view().part(0, 10), parts.buffer(), {});
      EXPECT_EQ(tier->traffic().sent_bytes, 3 * 3 * 10 * 2);
    }
    EXPECT_EQ(within_node[rank]->traffic().inter_node_sent_bytes, 0);
    EXPECT_EQ(along_rail[rank]->traffic().inter_node_sent_bytes, 3 * 3 * 10 * 2);
  });
}

TEST(Transport, TiersWithLinksOfBothKindsUseARing) {
  const auto tier = make_tier(std::vector<int>{0, 0, 1, 1});
  run_ranks_well(4, [&](int rank) {
    const bool at_the_edge = rank == 1 || rank == 3;  // the next rank sits on the other node
    const Array in = make_input(rank, 4 * 10, DataType::kBFloat16);
    Array sum(10, DataType::kFloat32);
    Array parts(4 * 10, DataType::kBFloat16);
    tier[rank]->reduce_scatter(in.view(), sum.buffer(), {});
    int64_t expected = 3 * 10 * 4;  // partial sums travel as float32
    EXPECT_EQ(tier[rank]->traffic().sent_bytes, expected);
    tier[rank]->all_gather(in.view().part(0, 10), parts.buffer(), {});
    expected += 3 * 10 * 2;
    EXPECT_EQ(tier[rank]->traffic().sent_bytes, expected);
    // Of 10 bytes the parts are 2, 3, 2, 3: all are sent twice, but for number `rank` and the next.
    std::vector<uint8_t> bytes(10);
    tier[rank]->all_reduce({bytes.data(), 10, DataType::kByte}, ReduceOp::kBitOr, {});
    expected += 2 * 10 - 5;
    EXPECT_EQ(tier[rank]->traffic().sent_bytes, expected);
    EXPECT_EQ(tier[rank]->traffic().inter_node_sent_bytes, at_the_edge ? expected : 0);
    tier[rank]->all_to_all(in.view(), parts.buffer(), {});
    EXPECT_EQ(tier[rank]->traffic().inter_node_sent_bytes, (at_the_edge ? expected : 0) + 2 * 10 * 2);
  });
}

TEST(Transport, TiersOfANodeMapMeetTheRightRanks) {
  const NodeMap map = NodeMap::parse("0,3|1,2", 4);
  InProcessHub hub(map);
  run_ranks_well(4, [&](int rank) {
    const Tiers tiers = hub.tiers(map, rank);
    EXPECT_EQ(tiers.intra->rank(), map.local_index(rank));
    EXPECT_EQ(tiers.inter->rank(), map.node(rank));
    EXPECT_EQ(tiers.flat->rank(), rank);
    const auto gather = [&](Transport& tier) {
      const auto mine = static_cast<uint8_t>(rank);
      std::vector<uint8_t> ranks(static_cast<size_t>(tier.size()));
      tier.all_gather({&mine, 1, DataType::kByte}, {ranks.data(), tier.size(), DataType::kByte}, {})->wait();
      return std::vector<int>(ranks.begin(), ranks.end());
    };
    EXPECT_EQ(gather(*tiers.intra), map.node_ranks(map.node(rank)));
    EXPECT_EQ(gather(*tiers.inter), map.rail_ranks(map.local_index(rank)));
    EXPECT_EQ(gather(*tiers.flat), (std::vector<int>{0, 1, 2, 3}));
  });
}

TEST(Transport, AMissingRankIsNamedByAllWhoWaited) {
  const auto tier = make_tier(4, kShortTimeout);
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

TEST(Transport, OperationsThatDifferAreAnErrorOnEveryRank) {
  const auto expect_both_named = [](const std::vector<Outcome>& outcomes, const std::string& text) {
    for (const Outcome& outcome : outcomes) {
      EXPECT_TRUE(outcome.threw<TransportError>());
      EXPECT_EQ(outcome.text, text);
    }
  };
  std::vector<float> memory(64);
  const auto all_reduce = [](Transport& transport, int64_t count, DataType dtype, ReduceOp op = ReduceOp::kSum) {
    std::vector<double> data(static_cast<size_t>(count));
    transport.all_reduce({data.data(), count, dtype}, op, {})->wait();
  };
  auto tier = make_tier(3);
  expect_both_named(run_ranks(3, [&](int rank) { all_reduce(*tier[rank], rank == 2 ? 5 : 4, DataType::kFloat32); }),
                    "tier test: rank 0 calls all_reduce of 4 elements of float32, but rank 2 calls all_reduce of 5 "
                    "elements of float32");
  tier = make_tier(2);
  expect_both_named(
      run_ranks(2, [&](int rank) { all_reduce(*tier[rank], 4, rank == 0 ? DataType::kFloat32 : DataType::kBFloat16); }),
      "tier test: rank 0 calls all_reduce of 4 elements of float32, but rank 1 calls all_reduce of 4 elements of "
      "bfloat16");
  tier = make_tier(2);
  expect_both_named(
      run_ranks(2,
                [&](int rank) {
                  all_reduce(*tier[rank], 4, DataType::kByte, rank == 0 ? ReduceOp::kSum : ReduceOp::kBitOr);
                }),
      "tier test: rank 0 calls all_reduce of 4 elements of byte, but rank 1 calls all_reduce (or) of 4 elements of "
      "byte");
  tier = make_tier(2);
  expect_both_named(run_ranks(2,
                              [&](int rank) {
                                Array in(4, DataType::kFloat32);
                                Array out(rank == 0 ? 2 : 4, DataType::kFloat32);
                                rank == 0 ? tier[0]->reduce_scatter(in.view(), out.buffer(), {})
                                          : tier[1]->all_to_all(in.view(), out.buffer(), {});
                              }),
                    "tier test: rank 0 calls reduce_scatter of 4 elements of float32, but rank 1 calls all_to_all of 4 "
                    "elements of float32");
}

TEST(Transport, AbortReachesRanksThatWaitAndRanksThatComeLater) {
  const auto tier = make_tier(3);
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

TEST(Transport, SizesThatDoNotFitAreNamed) {
  const auto tier = make_tier(2);
  Array five(5, DataType::kFloat32);
  Array two(2, DataType::kFloat32);
  EXPECT_THROW(tier[0]->reduce_scatter(five.view(), two.buffer(), {}), Error);
  EXPECT_THROW(tier[0]->all_to_all(five.view(), five.buffer(), {}), Error);
  EXPECT_THROW(tier[0]->all_gather(two.view(), five.buffer(), {}), Error);
  InProcessHub hub(std::vector<int>{0, 0});
  EXPECT_THROW(hub.transport("test", {0, 1}, 2), Error);
}

}  // namespace
}  // namespace isthmus
