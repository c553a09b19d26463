// Calls of MPI whose errors become TransportError.
#pragma once

#include <mpi.h>

#include <string>

#include "isthmus/error.h"

namespace isthmus {

inline std::string error_text(int code) {
  char text[MPI_MAX_ERROR_STRING];
  int length = 0;
  MPI_Error_string(code, text, &length);
  return {text, static_cast<size_t>(length)};
}

inline void check_mpi(int code, const char* call) {
  ISTHMUS_CHECK(TransportError, code == MPI_SUCCESS, call, ": ", error_text(code));
}

// The caller's rank in `comm`.
inline int rank_in(MPI_Comm comm) {
  int rank = 0;
  check_mpi(MPI_Comm_rank(comm, &rank), "MPI_Comm_rank");
  return rank;
}

}  // namespace isthmus
