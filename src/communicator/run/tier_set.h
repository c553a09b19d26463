// The tiers of one rank, and its place in them.
#pragma once

#include <chrono>
#include <functional>
#include <map>
#include <memory>
#include <vector>

#include "base/rounding.h"
#include "isthmus/communicator.h"
#include "isthmus/device.h"
#include "isthmus/node_map.h"
#include "isthmus/stats.h"
#include "isthmus/transport.h"

namespace isthmus {

// A rank's place in the node map, and its transports. Gathers without tiers of their own use those of reductions.
// Any thread may call it, as far as its transports allow.
class TierSet {
 public:
  // with_flat: a tier of all ranks is required. Throws OptionError or Error if the tiers do not fit the map.
  TierSet(NodeMap map, int rank, Tiers tiers, bool with_flat);

  const NodeMap& map() const { return map_; }
  int rank() const { return rank_; }
  int world_size() const { return map_.world_size(); }
  int num_nodes() const { return map_.num_nodes(); }
  int ranks_per_node() const { return map_.ranks_per_node(); }
  int node() const { return map_.node(rank_); }

  Transport& intra() const { return *tiers_.intra; }
  Transport& inter() const { return *tiers_.inter; }
  Transport& flat() const { return *tiers_.flat; }
  Transport& gather_intra() const { return tiers_.gather_intra ? *tiers_.gather_intra : intra(); }
  Transport& gather_inter() const { return tiers_.gather_inter ? *tiers_.gather_inter : inter(); }
  // All operations of one tier run on one lane.
  Lane gather_intra_lane() const { return tiers_.gather_intra ? Lane::kGatherIntra : Lane::kIntra; }
  Lane gather_inter_lane() const { return tiers_.gather_inter ? Lane::kGatherInter : Lane::kInter; }

  // How pieces are summed within the node, and their type.
  SumType piece_type(const Device& device, DataType dtype) const;
  // Elements of one rank's chunk, rounded up: zeros pad the last chunk.
  int64_t chunk_elements(int64_t num_elements) const { return divide_up(num_elements, world_size()); }

  // Adds what this rank sent, and how long it waited for others, since the last call. The thread that calls collectives
  // calls it.
  void take_counts(CollectiveStats& sent, PeerWaits& waits) const;

  // Adds the aborts of all tiers, which run at once: on a GPU one may end only when the others' operations have.
  void add_aborts(std::vector<std::function<void()>>& aborts) const;
  // Throws the failure of a tier, if one has failed.
  void throw_if_failed() const;
  // The longest of all tiers.
  std::chrono::milliseconds failure_delay() const;

 private:
  const NodeMap map_;
  const int rank_;
  const Tiers tiers_;
  const std::vector<std::shared_ptr<Transport>> all_;  // those that there are
  mutable std::map<const Transport*, Traffic> counted_;
};

}  // namespace isthmus
