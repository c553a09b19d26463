// How the ranks of NCCL's tiers find each other.
#include <algorithm>
#include <utility>

#include "isthmus/error.h"
#include "transport/nccl.h"

namespace isthmus {
namespace {

// Names a tier among all of the group: "intra/3".
std::string key_of(const char* name, int number) { return detail::concatenate(name, "/", number); }

}  // namespace

ncclUniqueId draw_nccl_id() {
  ncclUniqueId id;
  const ncclResult_t result = ncclGetUniqueId(&id);
  ISTHMUS_CHECK(TransportError, result == ncclSuccess, "ncclGetUniqueId: ", ncclGetErrorString(result), ": ",
                ncclGetLastError(nullptr));
  return id;
}

Tiers nccl_tiers_when_used(int rank, const NodeMap& map, const std::vector<int>& global_ranks, int ordinal,
                           const NcclIdOf& id_of, std::chrono::milliseconds timeout, bool with_flat) {
  const auto tier = [&](const char* name, const std::vector<int>& ranks, int max_ctas, int number) {
    NcclTierPlace place;
    place.name = name;
    place.ordinal = ordinal;
    place.max_ctas = max_ctas;
    for (const int member : ranks) {
      place.global_ranks.push_back(global_ranks[member]);
      place.node_of_rank.push_back(map.node(member));
    }
    place.rank = static_cast<int>(std::find(ranks.begin(), ranks.end(), rank) - ranks.begin());
    const auto id = [id_of, key = key_of(name, number), draws = place.rank == 0] { return id_of(key, draws); };
    return ranks.size() > 1 ? std::make_shared<NcclTransport>(std::move(place), id, timeout) : nullptr;
  };
  const int node = map.node(rank);
  const int rail = map.local_index(rank);
  const std::vector<int>& node_ranks = map.node_ranks(node);
  const std::vector<int> rail_ranks = map.rail_ranks(rail);
  return {.intra = tier("intra", node_ranks, kIntraMaxCtas, node),
          .inter = tier("inter", rail_ranks, kInterMaxCtas, rail),
          .flat = with_flat ? tier("flat", map.all_ranks(), kInterMaxCtas, 0) : nullptr,
          .gather_intra = tier("gather-intra", node_ranks, kIntraMaxCtas, node),
          .gather_inter = tier("gather-inter", rail_ranks, kInterMaxCtas, rail)};
}

// Rank 0 draws the ids of all tiers, in an order that is the same on all ranks.
Tiers nccl_tiers(int rank, const NodeMap& map, int ordinal, const NcclBroadcast& broadcast,
                 std::chrono::milliseconds timeout) {
  ISTHMUS_CHECK(Error, rank >= 0 && rank < map.world_size(), "rank ", rank, " is not in 0..", map.world_size() - 1);
  map.require_even();
  std::vector<std::string> keys;
  for (int node = 0; node < map.num_nodes(); ++node) {
    keys.insert(keys.end(), {key_of("intra", node), key_of("gather-intra", node)});
  }
  for (int rail = 0; rail < map.ranks_per_node(); ++rail) {
    keys.insert(keys.end(), {key_of("inter", rail), key_of("gather-inter", rail)});
  }
  std::vector<ncclUniqueId> ids(keys.size());
  if (rank == 0) {
    std::generate(ids.begin(), ids.end(), draw_nccl_id);
  }
  broadcast(ids.data(), static_cast<int64_t>(ids.size() * sizeof(ncclUniqueId)));

  const auto id_of = [keys, ids](const std::string& key, bool /*draws*/) {
    return ids[static_cast<size_t>(std::find(keys.begin(), keys.end(), key) - keys.begin())];
  };
  const Tiers tiers = nccl_tiers_when_used(rank, map, map.all_ranks(), ordinal, id_of, timeout);
  for (const auto& tier : tiers.all()) {
    static_cast<NcclTransport&>(*tier).connect();
  }
  return tiers;
}

}  // namespace isthmus
