// What the tests of MPI tiers share.
#pragma once

#include <mpi.h>

#include <string>

#include "isthmus/error.h"

namespace isthmus::test {

inline int world_rank() {
  int rank = 0;
  MPI_Comm_rank(MPI_COMM_WORLD, &rank);
  return rank;
}

// The text of the TransportError that body() throws; empty: none.
template <typename Body>
std::string transport_error_of(const Body& body) {
  try {
    body();
  } catch (const TransportError& error) {
    return error.what();
  }
  return "";
}

}  // namespace isthmus::test
