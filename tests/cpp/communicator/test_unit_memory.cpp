// What a communicator says where there is no memory for a unit's residual or for a collective.
#include <gtest/gtest.h>

#include <cstdint>
#include <vector>

#include "isthmus/communicator.h"
#include "isthmus/error.h"
#include "tests/cpp/support/world.h"

namespace isthmus {
namespace {

using test::exact_options;
using test::lossy_options;
using test::run_ranks;
using test::World;

constexpr DataType kFloat32 = DataType::kFloat32;

// More than any address space holds; nothing of the gradient is read before its residual is there.
TEST(UnitState, AResidualWithoutMemoryIsNamedAndAllRanksFail) {
  constexpr int64_t kElements = int64_t{1} << 56;
  for (const Collective collective : {Collective::kReduceScatter, Collective::kAllReduce}) {
    World world(NodeMap::parse("2x2", 4), lossy_options());
    const std::vector<test::Outcome> outcomes = run_ranks(4, [&](int rank) {
      const UnitKey key{"embedding", kElements, kFloat32, collective};
      float nothing = 0;
      const Buffer gradient{&nothing, kElements, kFloat32};
      if (collective == Collective::kAllReduce) {
        world.ranks[rank]->all_reduce(gradient, {key});
      } else {
        world.ranks[rank]->reduce_scatter(gradient, gradient.part(0, kElements / 4), {key});
      }
    });
    for (int rank = 0; rank < 4; ++rank) {
      EXPECT_TRUE(outcomes[rank].threw<Error>());
      EXPECT_EQ(outcomes[rank].text, "unit \"embedding\": no memory for a residual of 72057594037927936 bytes");
      EXPECT_STREQ(world.ranks[rank]->phase(), "unit look-up");
      EXPECT_EQ(world.ranks[rank]->stats().residual_bytes, 0);
    }
  }
}

// One rank alone has no memory: the others must not wait for it.
TEST(UnitState, OneRankWithoutMemoryFailsTheOthers) {
  World world(NodeMap::parse("2x2", 4), lossy_options());
  const std::vector<test::Outcome> outcomes = run_ranks(4, [&](int rank) {
    const int64_t elements = rank == 2 ? int64_t{1} << 56 : 4000;
    std::vector<float> values(4000);
    world.ranks[rank]->all_reduce({values.data(), elements, kFloat32},
                                  {{"u", elements, kFloat32, Collective::kAllReduce}});
  });
  EXPECT_TRUE(outcomes[2].threw<Error>()) << outcomes[2].text;
  for (const int rank : {0, 1, 3}) {
    EXPECT_TRUE(outcomes[rank].threw<TransportError>()) << outcomes[rank].text;
  }
}

TEST(UnitState, BuffersWithoutMemoryAreNamed) {
  World world(NodeMap::parse("2x2", 4), exact_options());
  const std::vector<test::Outcome> outcomes = run_ranks(4, [&](int rank) {
    constexpr int64_t kElements = int64_t{1} << 56;
    float nothing = 0;
    world.ranks[rank]->reduce_scatter({&nothing, kElements, kFloat32}, {&nothing, kElements / 4, kFloat32},
                                      {{"u", kElements, kFloat32}});
  });
  for (const test::Outcome& outcome : outcomes) {
    EXPECT_TRUE(outcome.threw<Error>());
    EXPECT_EQ(outcome.text, "no memory for phase \"intra reduce-scatter\" of reduce_scatter");
  }
}

}  // namespace
}  // namespace isthmus
