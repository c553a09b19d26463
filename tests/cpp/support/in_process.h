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

namespace isthmus::test {

// The meeting point of the ranks of one process, which all threads share. Thread-safe. Transports keep alive what they
// need.
//
// If messages of an exchange are missing after `timeout`, all ranks of the tier, in later operations too, throw
// TransportError that names the ranks that did not begin it. So they do, naming both ranks, if one sends what another
// does not expect.
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

}  // namespace isthmus::test
