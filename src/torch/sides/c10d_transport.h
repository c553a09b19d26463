// A tier over the point-to-point calls of any c10d backend (Gloo today).
#pragma once

#include <atomic>
#include <string>
#include <torch/csrc/distributed/c10d/Backend.hpp>
#include <vector>

#include "transport/message_transport.h"

namespace isthmus::torch_backend {

using BackendPtr = c10::intrusive_ptr<c10d::Backend>;

// Uses only send and recv: Gloo's collectives copy once or twice more, and its reduce-scatter is an all-reduce inside.
// Without a deadline, the backend's own timeout applies.
class C10dTransport final : public MessageTransport {
 public:
  // The arguments are those of MessageTransport.
  C10dTransport(std::string tier, BackendPtr backend, std::vector<int> global_ranks,
                const std::vector<int>& node_of_rank);

  // Closes this rank's connections, so that the peers' operations fail at once instead of at their deadline.
  void abort() override;

 private:
  class Messages;

  std::unique_ptr<Exchange> start_exchange(Operation operation) override;

  const BackendPtr backend_;
  std::atomic<bool> aborted_{false};
  int64_t next_exchange_ = 0;
};

// Makes pending and later operations of `backend` fail, here and on the peers. Backends whose abort() does nothing
// (Gloo) need it: a receive that times out closes all their connections.
void close_connections(c10d::Backend& backend);

}  // namespace isthmus::torch_backend
