// Whether all ranks hold the same.
#pragma once

#include <gtest/gtest.h>

#include <vector>

#include "tests/cpp/support/typed_data.h"

namespace isthmus::test {

// One array of each rank.
inline void expect_equal_bits(const std::vector<Array>& arrays) {
  for (size_t rank = 1; rank < arrays.size(); ++rank) {
    ASSERT_TRUE(arrays[rank].bytes() == arrays[0].bytes()) << "rank " << rank << " has other bits than rank 0";
  }
}

}  // namespace isthmus::test
