#include <gtest/gtest.h>

#include <vector>

#include "isthmus/communicator.h"
#include "world.h"

namespace isthmus {
namespace {

using test::Array;
using test::exact_options;
using test::kFloatingTypes;
using test::sum_of;
using test::World;

std::vector<NodeMap> all_maps() {
  return {NodeMap::parse("1x1", 1),
          NodeMap::parse("1x4", 4),
          NodeMap::parse("4x1", 4),
          NodeMap::parse("2x2", 4),
          NodeMap::parse("3x2", 6),
          NodeMap({0, 1, 0, 1}),                    // cyclic
          NodeMap::parse("0,4,5|1,2,8|3,6,7", 9)};  // arbitrary
}

class AllReduceOnEveryMap : public ::testing::TestWithParam<NodeMap> {};
INSTANTIATE_TEST_SUITE_P(Maps, AllReduceOnEveryMap, ::testing::ValuesIn(all_maps()), test::name_of_map);

// Small integers are summed without rounding: one misplaced element shows.
TEST_P(AllReduceOnEveryMap, SumOfSmallIntegersIsExact) {
  for (const char* tiers : {"two", "flat"}) {
    Options options = exact_options();
    options.tiers = tiers;
    World world(GetParam(), options);
    const int64_t size = world.size();
    for (const DataType dtype : kFloatingTypes) {
      for (const int64_t elements : std::vector<int64_t>{0, 1, size - 1, size, size + 1, 65 * size, 65 * size + 7}) {
        std::vector<Array> inputs;
        for (int rank = 0; rank < size; ++rank) {
          std::vector<double> values;
          for (int64_t i = 0; i < elements; ++i) {
            values.push_back(static_cast<double>((31 * rank + 7 * i) % 13 - 6));
          }
          inputs.emplace_back(values, dtype);
        }
        std::vector<double> twice = sum_of(inputs);
        for (double& value : twice) {
          value *= 2;
        }
        for (const Array& result : world.all_reduce(inputs, 2, nullptr)) {
          ASSERT_EQ(result.values(), twice) << tiers << ", " << elements << " elements of " << to_string(dtype);
        }
      }
    }
  }
}

}  // namespace
}  // namespace isthmus
