// What the tests of MPI tiers share.
#pragma once

#include <mpi.h>

namespace isthmus::test {

inline int world_rank() {
  int rank = 0;
  MPI_Comm_rank(MPI_COMM_WORLD, &rank);
  return rank;
}

}  // namespace isthmus::test
