// isthmus._mpi: tiers over MPI for the torch backend. It uses the types and exceptions of isthmus._C.
#include <mpi.h>
#include <pybind11/chrono.h>
#include <pybind11/pybind11.h>
#include <pybind11/stl.h>

#include <chrono>
#include <cstdlib>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "isthmus/error.h"
#include "transport/mpi.h"

namespace isthmus {
namespace {

namespace py = pybind11;

bool initialised_here = false;

// Returns whether mpiexec or Slurm started this process: Open MPI, MPICH's descendants, and Slurm with either set these
// variables. Without any of them, MPI_Init would make a world of this process alone, or end it.
bool started_by_mpiexec() {
  for (const char* variable : {"OMPI_COMM_WORLD_SIZE", "PMI_SIZE", "PMI_RANK", "PMIX_RANK"}) {
    if (std::getenv(variable) != nullptr) {
      return true;
    }
  }
  return false;
}

// Initialises MPI unless it is initialised; returns this process's rank in MPI_COMM_WORLD, and its size.
std::pair<int, int> start() {
  int initialised = 0;
  MPI_Initialized(&initialised);
  if (initialised == 0) {
    ISTHMUS_CHECK(Error, started_by_mpiexec(), "this process was not started by mpiexec");
    int level = MPI_THREAD_SINGLE;
    MPI_Init_thread(nullptr, nullptr, MPI_THREAD_MULTIPLE, &level);
    initialised_here = true;
  }
  require_mpi();
  int rank = 0;
  int size = 0;
  MPI_Comm_rank(MPI_COMM_WORLD, &rank);
  MPI_Comm_size(MPI_COMM_WORLD, &size);
  return {rank, size};
}

// Finalises MPI if start() initialised it, but not after a failure: other ranks might never finalise. mpiexec ends the
// job when a process disappears.
void finish() {
  if (initialised_here && mpi_is_running() && !any_mpi_tier_failed()) {
    MPI_Finalize();
  }
}

// "Open MPI v4.1.4, ...": tells which mpiexec can start this.
std::string library() {
  char text[MPI_MAX_LIBRARY_VERSION_STRING];
  int length = 0;
  MPI_Get_library_version(text, &length);
  return {text, static_cast<size_t>(length)};
}

std::shared_ptr<MessageTransport> make_tier(const std::string& name, const std::vector<int>& ranks,
                                            const std::vector<int>& nodes, std::chrono::milliseconds timeout) {
  MpiLimits limits;
  limits.timeout = timeout;
  return MpiTransport::create(name, MPI_COMM_WORLD, ranks, nodes, limits);
}

PYBIND11_MODULE(_mpi, module) {
  using namespace py::literals;
  const auto unlocked = py::call_guard<py::gil_scoped_release>();
  module.doc() = "Tiers of isthmus over MPI.";
  py::module_::import("isthmus._C");  // registers the types
  module.def("start", &start, unlocked);
  module.def("finish", &finish, unlocked);
  module.def("library", &library);
  module.def("make_tier", &make_tier, unlocked, "name"_a, "ranks"_a, "nodes"_a, "timeout"_a);
}

}  // namespace
}  // namespace isthmus
