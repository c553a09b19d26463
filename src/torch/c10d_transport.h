// A tier over the point-to-point calls of any c10d backend (Gloo today).
#pragma once

#include <atomic>
#include <chrono>
#include <cstddef>
#include <mutex>
#include <string>
#include <torch/csrc/distributed/c10d/Backend.hpp>
#include <vector>

#include "isthmus/transport.h"

namespace isthmus::torch_backend {

using Clock = std::chrono::steady_clock;

// Everything is built from send and recv: Gloo's own collectives copy once or twice more, and its reduce-scatter is an
// all-reduce inside. Where all links are of one kind each part goes straight to its owner, who sums in rank order. In
// a tier that spans nodes with several ranks on each ("flat") data walks a ring, so that in block placement only one
// edge leaves each node; there the operation has completed when the call returns.
class C10dTransport final : public Transport {
 public:
  // tier: "intra", "inter" or "flat". global_ranks[p]: tier rank p's global rank; both for errors.
  // node_of_rank[p]: the node that tier rank p sits on.
  C10dTransport(std::string tier, c10::intrusive_ptr<c10d::Backend> backend, std::vector<int> global_ranks,
                std::vector<int> node_of_rank);
  ~C10dTransport() override;

  // Operations that are started or waited for from now on fail at `deadline`. Called by the thread that starts them.
  void set_deadline(Clock::time_point deadline) { deadline_ = deadline; }

  int rank() const override { return backend_->getRank(); }
  int size() const override { return backend_->getSize(); }
  HandlePtr reduce_scatter(ConstBuffer in, Buffer out, Stream stream) override;
  HandlePtr all_to_all(ConstBuffer in, Buffer out, Stream stream) override;
  HandlePtr all_gather(ConstBuffer in, Buffer out, Stream stream) override;
  HandlePtr all_reduce(Buffer data, ReduceOp op, Stream stream) override;
  Traffic traffic() const override;
  // Closes this rank's connections, so that the peers' operations fail at once instead of at their deadline.
  void abort() override;

  const std::string& tier() const { return tier_; }
  int64_t scratch_bytes() const { return scratch_bytes_; }  // held for good. From any thread

 private:
  class Exchange;
  class DirectReduceScatter;

  void ring_reduce_scatter(ConstBuffer in, Buffer out);
  void ring_reduce(Buffer data, const std::vector<int64_t>& offsets, ReduceOp op);
  void ring_gather(const char* operation, Buffer data, const std::vector<int64_t>& offsets);
  int neighbour(int distance) const { return (rank() + distance + size()) % size(); }
  std::vector<std::byte> take_scratch(int64_t bytes);
  void give_scratch(std::vector<std::byte> scratch);

  std::string tier_;
  c10::intrusive_ptr<c10d::Backend> backend_;
  std::vector<int> global_ranks_;
  std::vector<int> node_of_rank_;
  bool ring_ = false;
  Clock::time_point deadline_ = Clock::time_point::max();
  std::atomic<bool> aborted_{false};
  int64_t next_exchange_ = 0;
  std::vector<std::vector<std::byte>> free_scratch_;
  std::atomic<int64_t> scratch_bytes_{0};  // those that are in use, too
  mutable std::mutex traffic_mutex_;
  Traffic traffic_;
};

// Makes pending and later operations of `backend` fail here, and lets the peers' fail too. For backends whose abort()
// does nothing (Gloo): a receive that times out closes all their connections.
void close_connections(c10d::Backend& backend);

}  // namespace isthmus::torch_backend
