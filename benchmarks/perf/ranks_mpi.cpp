// Ranks that are processes of an mpiexec.
#include <mpi.h>

#include <cstdlib>
#include <exception>
#include <iostream>

#include "isthmus/error.h"
#include "isthmus/mpi.h"
#include "perf/ranks.h"

namespace isthmus::perf {
namespace {

class ProcessRank final : public Rank {
 public:
  ProcessRank(int rank, int size, std::chrono::milliseconds timeout) : Rank(rank, size), limits_{timeout} {}

  NodeMap default_nodes() override { return mpi_node_map(MPI_COMM_WORLD); }
  Tiers tiers(const NodeMap& map) override { return mpi_tiers(MPI_COMM_WORLD, map, limits_); }

 private:
  const MpiLimits limits_;
};

}  // namespace

// Where a rank fails the others would not come to MPI_Finalize: the job ends.
void run_over_mpi(std::chrono::milliseconds timeout, const RankBody& body) {
  int level = MPI_THREAD_SINGLE;
  MPI_Init_thread(nullptr, nullptr, MPI_THREAD_MULTIPLE, &level);
  int rank = 0;
  int size = 1;
  MPI_Comm_rank(MPI_COMM_WORLD, &rank);
  MPI_Comm_size(MPI_COMM_WORLD, &size);
  try {
    ProcessRank self(rank, size, timeout);
    body(self);
  } catch (const std::exception& error) {
    std::cerr << detail::concatenate("isthmus_perf: rank ", rank, ": ", error.what(), '\n') << std::flush;
    MPI_Abort(MPI_COMM_WORLD, EXIT_FAILURE);
  }
  MPI_Finalize();
}

// What Open MPI, and all that descend from MPICH, tell the processes that they start.
bool started_by_mpiexec() {
  return std::getenv("OMPI_COMM_WORLD_SIZE") != nullptr || std::getenv("PMI_SIZE") != nullptr;
}

std::string mpi_version() {
  char text[MPI_MAX_LIBRARY_VERSION_STRING];
  int length = 0;
  MPI_Get_library_version(text, &length);
  const std::string version(text, static_cast<size_t>(length));
  return version.substr(0, version.find('\n'));
}

}  // namespace isthmus::perf
