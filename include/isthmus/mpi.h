// Tiers over MPI, for a communicator without torch: library isthmus_mpi, built where CMake finds MPI.
#pragma once

#include <mpi.h>

#include <chrono>
#include <cstdint>

#include "isthmus/communicator.h"
#include "isthmus/node_map.h"

namespace isthmus {

struct MpiLimits {
  // How long messages that travel together may take. An operation in several rounds has this limit for each round.
  std::chrono::milliseconds timeout{std::chrono::minutes(10)};
  // Larger messages are cut, because MPI before version 4 counts in int. From 1 to 2^31 - 1, equal on all ranks.
  int64_t max_message_bytes = int64_t{1} << 30;
};

// These functions need MPI at level MPI_THREAD_MULTIPLE, because any thread may call abort(); otherwise they throw
// Error that names the present level. Failures of MPI itself throw TransportError. Destroy the tiers before
// MPI_Finalize.

// Maps the ranks of `comm` to nodes: ranks that share a host's memory, as MPI sees it. Collective over `comm`.
NodeMap mpi_node_map(MPI_Comm comm);

// Makes all tiers of the calling rank; tiers of one rank are null. `map` places the ranks of `comm` and is equal on all
// of them: mpi_node_map(comm), or another one (NodeMap::parse) that treats one host as several nodes. Collective over
// `comm`, which is only borrowed. Like every function that makes MPI communicators, it waits for the other ranks
// without a limit.
//
// After limits.timeout an operation throws TransportError that names the missing ranks. When an operation fails on one
// rank, it and all later ones fail on all ranks of the tier: a rank that gives up sends each peer a message, and every
// waiting rank polls for it. mpirun ends the job if a process dies.
//
// MPI cannot take back a message whose transfer has begun. After a failure unmatched receives are cancelled, and the
// rest has a second to end. If a peer stopped in the middle of a message, MPI may still write the operation's output
// and read its input until that peer goes on or MPI_Finalize is called. Such a process should report and end.
Tiers mpi_tiers(MPI_Comm comm, const NodeMap& map, const MpiLimits& limits = {});

}  // namespace isthmus
