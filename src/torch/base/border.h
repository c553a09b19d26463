// What calls of a world backend carry over the border of this rank's node.
#pragma once

#include <cstdint>
#include <vector>

#include "isthmus/node_map.h"

namespace isthmus::torch_backend {

// Payload in bytes, out of this rank's node and into it.
struct BorderTraffic {
  int64_t sent_bytes = 0;
  int64_t received_bytes = 0;

  BorderTraffic& operator+=(BorderTraffic more) {
    sent_bytes += more.sent_bytes;
    received_bytes += more.received_bytes;
    return *this;
  }
  BorderTraffic reversed() const { return {received_bytes, sent_bytes}; }
};

// The least that has to cross, by the meaning of a call and the nodes of its ranks: a number that every other node
// needs crosses once for each of them, a node's sum crosses in place of its ranks' numbers. What a backend sends beside
// that, round a ring or along a tree, it does not tell. Where any rank of a node may send it, each of them counts an
// equal share. Immutable; bytes are those of one rank's tensor, roots and peers are ranks of the group.
class Border {
 public:
  Border(const NodeMap& map, int rank) : map_(map), node_(map.node(rank)) {}

  // Every rank gets each rank's bytes.
  BorderTraffic all_gather(int64_t bytes) const { return {other_nodes() * bytes, share(other_ranks() * bytes)}; }
  // Every rank gets a sum of so many bytes.
  BorderTraffic reduce_scatter(int64_t bytes) const { return all_gather(bytes).reversed(); }
  BorderTraffic all_reduce(int64_t bytes) const {
    BorderTraffic crossing = all_gather(bytes);
    crossing += crossing.reversed();
    return {crossing.sent_bytes / map_.world_size(), crossing.received_bytes / map_.world_size()};
  }
  BorderTraffic broadcast(int64_t bytes, int root) const {
    return is_here(root) ? BorderTraffic{share(other_nodes() * bytes), 0} : BorderTraffic{0, share(bytes)};
  }
  BorderTraffic reduce(int64_t bytes, int root) const { return broadcast(bytes, root).reversed(); }
  BorderTraffic gather(int64_t bytes, int rank, int root) const {
    return rank == root ? BorderTraffic{0, other_ranks() * bytes} : send(bytes, root);
  }
  BorderTraffic scatter(int64_t bytes, int rank, int root) const { return gather(bytes, rank, root).reversed(); }
  BorderTraffic send(int64_t bytes, int peer) const { return {is_here(peer) ? 0 : bytes, 0}; }
  BorderTraffic receive(int64_t bytes, int peer) const { return send(bytes, peer).reversed(); }

 private:
  // The world backend refuses ranks that the group does not have.
  bool is_here(int rank) const { return rank < 0 || rank >= map_.world_size() || map_.node(rank) == node_; }
  int64_t other_nodes() const { return map_.num_nodes() - 1; }
  int64_t ranks_here() const { return static_cast<int64_t>(map_.node_ranks(node_).size()); }
  int64_t other_ranks() const { return map_.world_size() - ranks_here(); }
  int64_t share(int64_t bytes) const { return bytes / ranks_here(); }

  const NodeMap& map_;
  const int node_;
};

}  // namespace isthmus::torch_backend
