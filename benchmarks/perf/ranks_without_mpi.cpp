// Where no MPI was found.
#include "isthmus/error.h"
#include "perf/ranks.h"

namespace isthmus::perf {

void run_over_mpi(std::chrono::milliseconds /*timeout*/, const RankBody& /*body*/) {
  throw OptionError("--transport mpi: isthmus_perf was built without MPI");
}

bool started_by_mpiexec() { return false; }
std::string mpi_version() { return ""; }

}  // namespace isthmus::perf
