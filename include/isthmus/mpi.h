// Tiers over MPI: the communicator without torch. In the library isthmus_mpi, which is built where CMake finds MPI.
#pragma once

#include <mpi.h>

#include <chrono>
#include <cstdint>

#include "isthmus/communicator.h"
#include "isthmus/node_map.h"

namespace isthmus {

struct MpiLimits {
  // How long messages that are under way together may take. An operation that goes in rounds has this for each.
  std::chrono::milliseconds timeout{std::chrono::minutes(10)};
  // Larger messages are cut: MPI before version 4 counts in int. 1 to 2^31 - 1, equal on all ranks.
  int64_t max_message_bytes = int64_t{1} << 30;
};

// All of this needs MPI to be initialised at level MPI_THREAD_MULTIPLE, because abort() may come from any thread;
// otherwise it throws Error that names the present level. Failures of MPI itself throw TransportError. Tiers must be
// destroyed before MPI_Finalize.

// Which ranks of `comm` share a host's memory, as MPI sees it. Collective over `comm`.
NodeMap mpi_node_map(MPI_Comm comm);

// All tiers of the calling rank; those of one rank are null. `map` is of the ranks of `comm` and equal on all of them:
// mpi_node_map(comm), or any other (NodeMap::parse) to treat one host as several nodes. Collective over `comm`, and as
// all constructors of communicators in MPI it waits for the other ranks without a limit. `comm` is only borrowed.
//
// The tiers' operations throw TransportError that names the ranks that did not come once limits.timeout is over. An
// operation that fails on one rank makes those of all ranks of the tier fail, this one and all later ones: a rank that
// gives up tells each peer by a message, which every waiting rank polls for. mpirun ends the job if a process dies.
//
// MPI cannot take back a message whose transfer has begun. After a failure receives that nothing has matched are
// cancelled, and the rest is given a second to end. If a peer stopped in the middle of a message, MPI may write to
// the output of the operation, and read its input, until that peer goes on or MPI_Finalize is called: such a process
// should report and end.
Tiers mpi_tiers(MPI_Comm comm, const NodeMap& map, const MpiLimits& limits = {});

}  // namespace isthmus
