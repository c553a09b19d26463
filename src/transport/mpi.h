// A tier over an MPI communicator, and calls of MPI whose errors become TransportError. See isthmus/mpi.h for the
// tier's guarantees.
#pragma once

#include <mpi.h>

#include <atomic>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "isthmus/error.h"
#include "isthmus/mpi.h"
#include "transport/message_transport.h"

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

// Sends and receives on its own communicator. It waits by polling, because MPI has no wait with a time limit.
class MpiTransport final : public MessageTransport {
 public:
  // Makes the tier `name` of these ranks of `comm`, in this order. The caller is one of them, and all of them call it.
  // node_of_rank[p]: the node of ranks[p].
  static std::shared_ptr<MpiTransport> create(const std::string& name, MPI_Comm comm, const std::vector<int>& ranks,
                                              const std::vector<int>& node_of_rank, const MpiLimits& limits);
  ~MpiTransport() override;
  MpiTransport(const MpiTransport&) = delete;
  MpiTransport& operator=(const MpiTransport&) = delete;

  void abort() override;

 private:
  class Messages;

  // Owns `comm`, which must have no other user.
  MpiTransport(const std::string& name, MPI_Comm comm, std::vector<int> global_ranks,
               const std::vector<int>& node_of_rank, const MpiLimits& limits);

  std::unique_ptr<Exchange> start_exchange(Operation operation) override;
  // Makes all later operations fail, and tells the peers which global rank gave up first (`culprit`). Peers pass it on,
  // so that every rank names the same one. The first `reason` is kept.
  void close(const std::string& reason, int culprit);
  void close_as_aborted_by(int culprit);
  // Why nothing more can be sent: this rank or a peer gave up. Empty while the tier works.
  std::string why_closed();
  std::chrono::milliseconds time_limit() const;  // for an operation that starts now
  // `buffer` is the whole buffer, however it is cut.
  int data_tag(int64_t exchange_number, Operation operation, ConstBuffer buffer) const;
  bool is_of_exchange(int tag, int64_t exchange_number) const;
  std::string describe_tag(int tag) const;

  const MPI_Comm comm_;
  const MpiLimits limits_;
  int num_size_tags_ = 1;  // sizes are told apart modulo this odd number
  int num_exchange_tags_ = 1;
  int64_t next_exchange_ = 0;
  std::atomic<bool> closed_{false};
  std::mutex mutex_;  // guards what follows
  std::string reason_;
};

// Throws Error unless MPI is initialised, not finalised, and at level MPI_THREAD_MULTIPLE.
void require_mpi();

// Between MPI_Init and MPI_Finalize.
bool mpi_is_running();

// Whether any tier of this process has failed or was aborted, so that MPI_Finalize may wait for ever.
bool any_mpi_tier_failed();

}  // namespace isthmus
