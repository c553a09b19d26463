// Sends weights between nodes as bit-exact differences to what crossed before. See docs/weights.md.
#pragma once

#include <string>
#include <vector>

#include "codec/weights/weight_packet.h"
#include "communicator/run/run.h"
#include "communicator/run/tier_set.h"
#include "communicator/units/weight_replicas.h"
#include "isthmus/options.h"

namespace isthmus {

// Works on the CPU only. The thread that calls collectives uses it.
class WeightCrossing {
 public:
  // tiers and options outlive this object.
  WeightCrossing(const TierSet& tiers, const Options& options) : tiers_(tiers), options_(options) {}

  // Updates the replica to the shards that the ranks of the rail have now. Needs several nodes. Throws PacketError on
  // every rank of the rail if their headers do not fit together.
  void cross(Run& run, ConstBuffer shard, Replica& replica);

 private:
  WeightHeader make_header(Run& run, ConstBuffer shard, const Replica& replica, Buffer packet);
  std::vector<WeightHeader> exchange(Run& run, const WeightHeader& own) const;
  // Why the shards cross whole, the same on all ranks; empty: their differences cross.
  std::string why_whole(Run& run, const std::vector<WeightHeader>& headers) const;
  void gather_whole(Run& run, ConstBuffer shard, Replica& replica) const;
  void gather_packets(Run& run, ConstBuffer shard, ConstBuffer packet, const std::vector<WeightHeader>& headers,
                      Replica& replica);

  const TierSet& tiers_;
  const Options& options_;
  WeightPackets packets_;
};

}  // namespace isthmus
