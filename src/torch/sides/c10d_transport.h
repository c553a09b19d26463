// A tier over the point-to-point calls of any c10d backend (Gloo today).
#pragma once

#include <atomic>
#include <functional>
#include <mutex>
#include <string>
#include <torch/csrc/distributed/c10d/Backend.hpp>
#include <vector>

#include "transport/message_transport.h"

namespace isthmus::torch_backend {

using BackendPtr = c10::intrusive_ptr<c10d::Backend>;

using MakeBackend = std::function<BackendPtr()>;

// Uses only send and recv: Gloo's collectives copy once or twice more, and its reduce-scatter is an all-reduce inside.
// Without a deadline, the backend's own timeout applies.
class C10dTransport final : public MessageTransport {
 public:
  // make: called once, at the first operation of a tier of several ranks, which all of them begin; returns when all
  // have come, and is abandoned at the deadline and by abort(). It owns what it needs. The other arguments are those of
  // MessageTransport.
  C10dTransport(std::string tier, int rank, MakeBackend make, std::vector<int> global_ranks,
                const std::vector<int>& node_of_rank);
  // Over a backend that is connected.
  C10dTransport(std::string tier, BackendPtr backend, std::vector<int> global_ranks,
                const std::vector<int>& node_of_rank);

  // Closes this rank's connections, so that the peers' operations fail at once instead of at their deadline.
  void abort() override;

 private:
  class Messages;

  std::unique_ptr<Exchange> start_exchange(Operation operation) override;

  void connect(Operation operation);

  MakeBackend make_;
  std::mutex backend_mutex_;  // the thread that starts operations sets backend_ under it, and reads it without
  BackendPtr backend_;        // null: not connected yet
  std::atomic<bool> aborted_{false};
  int64_t next_exchange_ = 0;
};

// Makes pending and later operations of `backend` fail, here and on the peers. Backends whose abort() does nothing
// (Gloo) need it: a receive that times out closes all their connections.
void close_connections(c10d::Backend& backend);

}  // namespace isthmus::torch_backend
