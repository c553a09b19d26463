// Whole collectives over MPI tiers. Every process also computes them over in-process tiers, with a thread for each
// rank: what it gets over MPI must have the same bits.
#include <gtest/gtest.h>

#include <chrono>
#include <memory>
#include <stdexcept>
#include <string>
#include <vector>

#include "isthmus/communicator.h"
#include "isthmus/error.h"
#include "isthmus/mpi.h"
#include "tests/cpp/support/error_of.h"
#include "tests/cpp/support/hooked_transport.h"
#include "tests/cpp/support/world.h"
#include "world_ranks.h"

namespace isthmus {
namespace {

using std::chrono::milliseconds;
using test::Array;
using test::exact_options;
using test::HookedTransport;
using test::kFloatingTypes;
using test::lossy_options;
using test::random_arrays;
using test::random_inputs;
using test::run_ranks_well;
using test::World;
using test::world_rank;

constexpr int kWorldSize = 4;
constexpr MpiLimits kLimits{milliseconds(120000)};

struct Case {
  const char* name;
  NodeMap map;
  std::string codec;
};

std::vector<Case> all_cases() {
  std::vector<Case> cases;
  for (const std::string& codec : test::every_codec()) {
    for (const char* nodes : {"2x2", "4x1", "1x4"}) {
      cases.push_back({nodes, NodeMap::parse(nodes, kWorldSize), codec});
    }
    cases.push_back({"cyclic", NodeMap({0, 1, 0, 1}), codec});
  }
  return cases;
}

Options options_of(const Case& test_case) {
  Options options = lossy_options();
  options.codec = test_case.codec;
  options.ratio = 2;
  options.sparsity = .5;
  return options;
}

class EveryMap : public ::testing::TestWithParam<Case> {
 protected:
  EveryMap()
      : in_process(GetParam().map, options_of(GetParam())),
        mpi(GetParam().map, world_rank(), mpi_tiers(MPI_COMM_WORLD, GetParam().map, kLimits), options_of(GetParam())) {}

  World in_process;
  Communicator mpi;
};
INSTANTIATE_TEST_SUITE_P(Maps, EveryMap, ::testing::ValuesIn(all_cases()),
                         [](const auto& tested) { return std::string(tested.param.name) + "_" + tested.param.codec; });

UnitKey unit_of(ConstBuffer data, Collective collective) { return {"unit", data.num_elements, data.dtype, collective}; }

// Three steps, so that residuals come back.
TEST_P(EveryMap, ReduceScatterHasTheBitsOfInProcessTiers) {
  uint64_t seed = 0;
  for (const DataType dtype : kFloatingTypes) {
    for (const int64_t chunk : {0, 1, 1000}) {
      for (int step = 0; step < 3; ++step) {
        const std::vector<Array> inputs = random_inputs(kWorldSize, chunk, dtype, ++seed);
        Array expected(chunk, dtype);
        run_ranks_well(kWorldSize, [&](int rank) {
          Array shard(chunk, dtype);
          const ConstBuffer gradient = inputs[rank].view();
          in_process.ranks[rank]->reduce_scatter(gradient, shard.buffer(),
                                                 {unit_of(gradient, Collective::kReduceScatter), .25});
          if (rank == world_rank()) {
            expected = shard;
          }
        });
        const ConstBuffer gradient = inputs[world_rank()].view();
        Array shard(chunk, dtype);
        mpi.reduce_scatter(gradient, shard.buffer(), {unit_of(gradient, Collective::kReduceScatter), .25});
        EXPECT_TRUE(shard.bytes() == expected.bytes()) << to_string(dtype) << ", chunks of " << chunk;
      }
    }
  }
}

constexpr int64_t kElements = 4001;

// Reduces until something fails, at most twice: who is done before a peer fails learns of it in the next call.
std::string error_of_reductions(Communicator& communicator) {
  return test::error_of<TransportError>([&] {
    for (int step = 0; step < 2; ++step) {
      Array data(test::random_values(kElements, 3), DataType::kFloat32);
      communicator.all_reduce(data.buffer(), {unit_of(data.view(), Collective::kAllReduce)});
    }
  });
}

TEST(MpiCommunicator, ARankThatThrowsMakesAllFail) {
  const NodeMap map = NodeMap::parse("2x2", kWorldSize);
  constexpr int kVictim = 2;
  for (const char* operation : {"all_to_all", "all_gather"}) {
    Tiers tiers = mpi_tiers(MPI_COMM_WORLD, map, kLimits);
    if (world_rank() == kVictim) {
      const auto fail = [&](const std::string& running, ConstBuffer) {
        if (running == operation) {
          throw std::runtime_error("out of luck");
        }
      };
      tiers.inter = std::make_shared<HookedTransport>(tiers.inter, fail, nullptr);
    }
    Communicator communicator(map, world_rank(), tiers, lossy_options());
    if (world_rank() == kVictim) {
      EXPECT_THROW(error_of_reductions(communicator), std::runtime_error);
    } else {
      EXPECT_NE(error_of_reductions(communicator).find("aborted by rank "), std::string::npos);
    }
    MPI_Barrier(MPI_COMM_WORLD);
  }
}

}  // namespace
}  // namespace isthmus
