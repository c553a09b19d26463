// Runs the same tests in every process of an mpiexec. Rank 0 prints which, and every rank its failures: any of them is
// a failure of all.
#include <gtest/gtest.h>
#include <mpi.h>

#include <cstdio>

#include "world_ranks.h"

namespace {

using isthmus::test::world_rank;

// Where a test ends ranks wait for each other.
class FailuresOfThisRank final : public testing::EmptyTestEventListener {
  void OnTestPartResult(const testing::TestPartResult& result) override {
    if (result.failed() && world_rank() != 0) {
      const char* file = result.file_name() == nullptr ? "" : result.file_name();
      std::fprintf(stderr, "on rank %d: %s:%d: %s\n", world_rank(), file, result.line_number(), result.message());
    }
  }

  void OnTestEnd(const testing::TestInfo& /*test*/) override { MPI_Barrier(MPI_COMM_WORLD); }
};

}  // namespace

int main(int argc, char** argv) {
  int level = MPI_THREAD_SINGLE;
  MPI_Init_thread(&argc, &argv, MPI_THREAD_MULTIPLE, &level);
  testing::InitGoogleTest(&argc, argv);
  testing::TestEventListeners& listeners = testing::UnitTest::GetInstance()->listeners();
  if (world_rank() != 0) {
    delete listeners.Release(listeners.default_result_printer());
  }
  listeners.Append(new FailuresOfThisRank);  // gtest deletes it
  int failed = RUN_ALL_TESTS();
  MPI_Allreduce(MPI_IN_PLACE, &failed, 1, MPI_INT, MPI_MAX, MPI_COMM_WORLD);
  MPI_Finalize();
  return failed;
}
