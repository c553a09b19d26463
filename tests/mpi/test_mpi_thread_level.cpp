// MPI that is not running, or at a level that is too low: an error that says so.
#include <gtest/gtest.h>
#include <mpi.h>

#include <string>

#include "isthmus/error.h"
#include "isthmus/mpi.h"
#include "tests/cpp/support/error_of.h"

namespace isthmus {
namespace {

std::string error_of_node_map() {
  return test::error_of([] { mpi_node_map(MPI_COMM_WORLD); });
}

constexpr const char* kNotRunning =
    "MPI is not running: call MPI_Init_thread first, and let go of all tiers before MPI_Finalize";

TEST(MpiThreadLevel, IsNamedWhereItIsTooLow) {
  EXPECT_EQ(error_of_node_map(), kNotRunning) << "before MPI_Init_thread";
  int level = MPI_THREAD_SINGLE;
  ASSERT_EQ(MPI_Init_thread(nullptr, nullptr, MPI_THREAD_SERIALIZED, &level), MPI_SUCCESS);
  if (level == MPI_THREAD_SERIALIZED) {
    const std::string expected =
        "MPI runs at level MPI_THREAD_SERIALIZED, but Isthmus needs MPI_THREAD_MULTIPLE: ask for it in MPI_Init_thread";
    EXPECT_EQ(error_of_node_map(), expected);
    EXPECT_EQ(test::error_of([] { mpi_tiers(MPI_COMM_WORLD, NodeMap({0})); }), expected);
  } else {
    ADD_FAILURE() << "this MPI gives another level than it is asked for: " << level;
  }
  MPI_Finalize();
  EXPECT_EQ(error_of_node_map(), kNotRunning) << "after MPI_Finalize";
}

}  // namespace
}  // namespace isthmus

int main(int argc, char** argv) {
  testing::InitGoogleTest(&argc, argv);
  return RUN_ALL_TESTS();
}
