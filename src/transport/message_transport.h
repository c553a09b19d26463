// A tier built from messages between two ranks: what tiers over c10d backends and over MPI share.
#pragma once

#include <atomic>
#include <chrono>
#include <cstddef>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "isthmus/transport.h"

namespace isthmus {

using Clock = std::chrono::steady_clock;

// The collective that a message belongs to.
enum class Operation : uint8_t { kReduceScatter, kAllToAll, kAllGather, kPassOn };
inline constexpr int kNumOperations = 4;
const char* to_string(Operation operation);

// Where all links of a tier are of one kind (one node, or one rank a node), each part goes straight to its owner, which
// sums in rank order. With s ranks and parts of b bytes every rank sends (s-1) b. Within a node all parts leave at
// once. Between nodes they leave in rounds, in which every rank has one sender and one receiver. If all ranks sent to
// all at once, a node's link would be overloaded, drop packets and carry them again.
//
// In a tier that spans nodes with several ranks each ("flat") data goes around a ring, from r to r + 1, so that with
// block placement only one edge leaves each node. Sums follow the order of the ring, and partial sums travel in the
// accumulate type; the reduce-scatter is done when the call returns. all_gather takes the ring in every tier that spans
// nodes.
class MessageTransport : public Transport {
 public:
  int rank() const final { return rank_; }
  int size() const final { return static_cast<int>(global_ranks_.size()); }
  HandlePtr reduce_scatter(ConstBuffer in, Buffer out, Stream stream) override;
  HandlePtr all_to_all(ConstBuffer in, Buffer out, Stream stream) override;
  HandlePtr all_gather(ConstBuffer in, Buffer out, Stream stream) override;
  HandlePtr all_gather_uneven(ConstBuffer in, const std::vector<Buffer>& out, Stream stream) override;
  HandlePtr pass_on(ConstBuffer in, Buffer out, Stream stream) override;
  HandlePtr compare_units(uint64_t hash, const std::string& unit) override;
  Traffic traffic() const override;
  std::map<int, double> take_waits() override;

  // Operations that start or wait from now on fail at `deadline`. The thread that starts operations calls it.
  void set_deadline(Clock::time_point deadline) { deadline_ = deadline; }

  const std::string& tier() const { return tier_; }
  int64_t scratch_bytes() const { return scratch_bytes_; }  // never freed. Any thread may call it

 protected:
  // Messages that travel together. All ranks of the tier start exchanges in the same order, which pairs them.
  class Exchange : public Handle {
   public:
    Exchange(MessageTransport& transport, Operation operation) : transport_(transport), operation_(operation) {}

    void receive(int peer, Buffer buffer);
    void send(int peer, ConstBuffer buffer, bool counts = true);
    // wait() returns when all messages have arrived and left. It throws TransportError.

   protected:
    // The buffer is not empty, and is written only where this rank `receives`.
    virtual void post(bool receives, int peer, Buffer buffer) = 0;

    Operation operation() const { return operation_; }
    void count_wait(int peer, Clock::duration waited);

   private:
    MessageTransport& transport_;
    const Operation operation_;
  };

  // tier: "intra", "inter" or "flat". global_ranks[p]: tier rank p's global rank. Errors name both. node_of_rank[p]:
  // the node of tier rank p.
  MessageTransport(std::string tier, int rank, std::vector<int> global_ranks, const std::vector<int>& node_of_rank);

  virtual std::unique_ptr<Exchange> start_exchange(Operation operation) = 0;

  int global_rank(int rank) const { return global_ranks_[rank]; }
  Clock::time_point deadline() const { return deadline_; }  // time_point::max(): none was set

 private:
  class DirectExchange;
  class DirectReduceScatter;
  class RingGather;
  class UnitComparison;

  void ring_reduce_scatter(ConstBuffer in, Buffer out);
  int neighbour(int distance) const { return (rank() + distance + size()) % size(); }
  void count_sent(int peer, int64_t bytes);
  std::vector<std::byte> take_scratch(int64_t bytes);
  void give_scratch(std::vector<std::byte> scratch);

  const std::string tier_;
  const int rank_;
  const std::vector<int> global_ranks_;
  const std::vector<int> node_of_rank_;
  const bool ring_;  // whether the tier has links of both kinds
  const bool spans_nodes_;
  Clock::time_point deadline_ = Clock::time_point::max();
  std::vector<std::vector<std::byte>> free_scratch_;
  std::atomic<int64_t> scratch_bytes_{0};  // with buffers that are in use
  mutable std::mutex traffic_mutex_;       // guards what follows
  Traffic traffic_;
  std::map<int, double> waits_;
};

}  // namespace isthmus
