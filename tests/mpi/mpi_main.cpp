// Runs the same tests in every process of an mpiexec. Rank 0 prints, for all: a test fails where it fails on any rank.
#include <gtest/gtest.h>
#include <mpi.h>

#include <string>
#include <vector>

namespace {

int world_rank() {
  int rank = 0;
  MPI_Comm_rank(MPI_COMM_WORLD, &rank);
  return rank;
}

// The texts of all ranks; on rank 0 alone.
std::vector<std::string> gather(const std::string& text) {
  int size = 0;
  MPI_Comm_size(MPI_COMM_WORLD, &size);
  const int length = static_cast<int>(text.size());
  std::vector<int> lengths(static_cast<size_t>(size));
  MPI_Gather(&length, 1, MPI_INT, lengths.data(), 1, MPI_INT, 0, MPI_COMM_WORLD);
  std::vector<int> begins(lengths.size(), 0);
  for (size_t rank = 1; rank < begins.size(); ++rank) {
    begins[rank] = begins[rank - 1] + lengths[rank - 1];
  }
  std::string all(static_cast<size_t>(begins.back() + lengths.back()), ' ');
  MPI_Gatherv(text.data(), length, MPI_CHAR, all.data(), lengths.data(), begins.data(), MPI_CHAR, 0, MPI_COMM_WORLD);
  std::vector<std::string> texts;
  for (size_t rank = 0; rank < begins.size() && world_rank() == 0; ++rank) {
    texts.push_back(all.substr(static_cast<size_t>(begins[rank]), static_cast<size_t>(lengths[rank])));
  }
  return texts;
}

// Brings the other ranks' failures to rank 0 at the end of each test. It is where ranks wait for each other, too.
class FailuresOfAllRanks final : public testing::EmptyTestEventListener {
  void OnTestPartResult(const testing::TestPartResult& result) override {
    if (result.failed()) {
      const char* file = result.file_name() == nullptr ? "" : result.file_name();
      failures_ += std::string(file) + ':' + std::to_string(result.line_number()) + ": " + result.message() + '\n';
    }
  }

  void OnTestEnd(const testing::TestInfo& /*test*/) override {
    const std::vector<std::string> failures = gather(failures_);
    failures_.clear();
    for (size_t rank = 1; rank < failures.size(); ++rank) {
      if (!failures[rank].empty()) {
        ADD_FAILURE() << "on rank " << rank << ":\n" << failures[rank];
      }
    }
  }

  std::string failures_;
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
  listeners.Append(new FailuresOfAllRanks);  // gtest calls and deletes it; at a test's end before the printer
  int failed = RUN_ALL_TESTS();
  MPI_Bcast(&failed, 1, MPI_INT, 0, MPI_COMM_WORLD);  // rank 0 has failed if any has
  MPI_Finalize();
  return failed;
}
