// Ranks as threads of one process.
#pragma once

#include <chrono>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <utility>
#include <vector>

#include "isthmus/communicator.h"
#include "isthmus/node_map.h"
#include "isthmus/transport.h"

namespace isthmus {

// The meeting point of the ranks of one process, which all threads share. Thread-safe. Transports keep alive what they
// need.
//
// An operation blocks until all ranks of the tier have come. If ranks are missing after `timeout`, all others, later
// ones included, throw TransportError that names the missing ranks. If operation, type or size differ, every
// rank throws an error that names two differing ranks. Sums are taken in rank order.
//
// Traffic is counted as a network would carry it:
// - tier with links of one kind (one node, or one rank a node): every rank sends straight to every other. With s ranks
//   and parts of b bytes: all_to_all, reduce_scatter and all_gather (s-1) b of the input's type.
// - other tiers (`flat`): reduce_scatter and all_gather run around the ring of ranks, so that only links to the next
//   rank are used: (s-1) b to it. Partial sums travel in the accumulate type.
class InProcessHub {
 public:
  explicit InProcessHub(std::vector<int> node_of_rank,
                        std::chrono::milliseconds timeout = std::chrono::milliseconds(10000));
  explicit InProcessHub(const NodeMap& map, std::chrono::milliseconds timeout = std::chrono::milliseconds(10000))
      : InProcessHub(map.node_of_rank(), timeout) {}

  // The transport of rank `ranks[index]` in tier `name` over these global ranks, in this order. Ranks that give the
  // same name and ranks meet.
  std::shared_ptr<Transport> transport(const std::string& name, const std::vector<int>& ranks, int index);

  // All tiers of one rank of `map`, which must have this hub's world.
  Tiers tiers(const NodeMap& map, int rank);

 private:
  class Group;
  class Endpoint;

  const std::vector<int> node_of_rank_;
  const std::chrono::milliseconds timeout_;
  std::mutex mutex_;
  std::map<std::pair<std::string, std::vector<int>>, std::shared_ptr<Group>> groups_;
};

}  // namespace isthmus
