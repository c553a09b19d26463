// A tier over the point-to-point calls of a c10d backend (Gloo today), which other tiers and callers may use as well.
#pragma once

#include <atomic>
#include <climits>
#include <string>
#include <torch/csrc/distributed/c10d/Backend.hpp>
#include <vector>

#include "transport/message_transport.h"

namespace isthmus::torch_backend {

using BackendPtr = c10::intrusive_ptr<c10d::Backend>;

// The tags from this one on are those of tiers and of close_connections(). Callers' are below.
inline constexpr int kFirstOwnTag = INT_MAX - (1 << 24);

// Uses only send and recv: Gloo's collectives copy once or twice more, and its reduce-scatter is an all-reduce inside.
// Without a deadline, the backend's own timeout applies.
//
// Tiers of one backend differ in their tags. Gloo pairs messages by tag and rank alone, and numbers collectives only:
// so callers' threads may call it meanwhile. Its send() and recv() count up one number that is not guarded, and that is
// shown nowhere (torch 2.11 and 2.15).
class C10dTransport final : public MessageTransport {
 public:
  // ranks[p]: tier rank p's rank in `backend`; this rank is one of them. The other arguments are those of
  // MessageTransport.
  C10dTransport(std::string tier, BackendPtr backend, std::vector<int> ranks, std::vector<int> global_ranks,
                const std::vector<int>& node_of_rank);

  // No operation starts any more. Whoever owns the backend closes its connections, which ends those that wait.
  void abort() override { aborted_ = true; }

 private:
  class Messages;

  std::unique_ptr<Exchange> start_exchange(Operation operation) override;

  const BackendPtr backend_;
  const std::vector<int> ranks_;
  std::atomic<bool> aborted_{false};
  int64_t next_exchange_ = 0;
};

// Makes pending and later operations of `backend` fail, here and on the peers. Backends whose abort() does nothing
// (Gloo) need it: a receive that times out closes all their connections. The peers' operations fail at once then,
// instead of at their deadline.
void close_connections(c10d::Backend& backend);

}  // namespace isthmus::torch_backend
