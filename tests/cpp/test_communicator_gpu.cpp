// The communicator on emulated GPUs gives what it gives on the CPU, and orders what it enqueues.
#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "gpu_world.h"
#include "isthmus/communicator.h"

namespace isthmus {
namespace {

using test::Call;
using test::exact_options;
using test::expect_results_of_cpu;
using test::GpuWorld;
using test::kFloatingTypes;
using test::lossy_options;
using test::World;

std::vector<NodeMap> all_maps() {
  return {NodeMap::parse("1x1", 1), NodeMap::parse("1x2", 2), NodeMap::parse("2x1", 2), NodeMap::parse("4x1", 4),
          NodeMap::parse("2x2", 4), NodeMap::parse("3x2", 6), NodeMap({0, 1, 0, 1}),    NodeMap::parse("0,3|1,2", 4)};
}

class GpuOnEveryMap : public ::testing::TestWithParam<NodeMap> {};
INSTANTIATE_TEST_SUITE_P(Maps, GpuOnEveryMap, ::testing::ValuesIn(all_maps()), test::name_of_map);

// Every collective once for each type and size, each unit in several steps.
std::vector<Call> calls_of_every_kind(int64_t world_size, int steps) {
  std::vector<Call> calls;
  for (int step = 0; step < steps; ++step) {
    for (const DataType dtype : kFloatingTypes) {
      for (const int64_t chunk : {0, 1, 7, 300}) {
        const uint64_t seed = calls.size() + 1;
        calls.push_back({Collective::kReduceScatter, chunk * world_size, dtype, 0.5, "rs", nullptr, seed});
        calls.push_back({Collective::kAllGather, chunk * world_size, dtype, 1, "ag", nullptr, seed});
        calls.push_back({Collective::kAllReduce, chunk * world_size + chunk / 2, dtype, 0.3, "ar", nullptr, seed});
      }
    }
  }
  return calls;
}

TEST_P(GpuOnEveryMap, ResultsAreThoseOfTheCpu) {
  for (const Options& options : {exact_options(), lossy_options()}) {
    GpuWorld world(GetParam(), options);
    World cpu(GetParam(), options);
    expect_results_of_cpu(world, cpu, calls_of_every_kind(world.size(), 3), /*in_flight=*/7);
  }
}

}  // namespace
}  // namespace isthmus
