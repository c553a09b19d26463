// The four tiers of a rank over NCCL, and how their ranks find each other.
#pragma once

#include <nccl.h>

#include <chrono>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "isthmus/node_map.h"
#include "transport/nccl.h"

namespace isthmus {

// Returns the id of a tier's communicator, the same on all of its ranks and for no other tier. key: names the tier
// among all of the group. draws: this rank is the tier's first, and draws the id. Runs on a thread of its own, which is
// abandoned where it waits for too long: it owns what it refers to.
using NcclIdOf = std::function<ncclUniqueId(const std::string& key, bool draws)>;

// Draws an id. Throws TransportError.
ncclUniqueId draw_nccl_id();

// The tiers of nccl_tiers(), each of which connects when it is first used, by itself.
struct NcclTiers {
  std::shared_ptr<NcclTransport> intra;
  std::shared_ptr<NcclTransport> inter;
  std::shared_ptr<NcclTransport> gather_intra;
  std::shared_ptr<NcclTransport> gather_inter;

  Tiers as_tiers() const;
  std::vector<std::shared_ptr<NcclTransport>> all() const;  // those that there are, in the order above
};
// global_ranks: by rank of the map, for errors. timeout: for each tier to connect.
NcclTiers nccl_tiers_when_used(int rank, const NodeMap& map, const std::vector<int>& global_ranks, int ordinal,
                               const NcclIdOf& id_of, std::chrono::milliseconds timeout);

}  // namespace isthmus
