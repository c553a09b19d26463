// Sends weights between nodes as bit-exact differences to what crossed before. See docs/weights.md.
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "codec/weights/weight_coder.h"
#include "communicator/run/run.h"
#include "communicator/run/tier_set.h"
#include "communicator/units/weight_replicas.h"
#include "isthmus/options.h"

namespace isthmus {

// The thread that calls collectives uses it.
class WeightCrossing {
 public:
  // throw_if_aborted: throws TransportError once the communicator is aborted. All arguments outlive this object.
  WeightCrossing(const TierSet& tiers, const Options& options, Device& device, std::function<void()> throw_if_aborted);

  // Updates the replica to the shards that the ranks of the rail have now; on a GPU by work that it enqueues, after it
  // has waited for the headers. Needs several nodes, and no capture of a graph. Throws PacketError on every rank of the
  // rail if their headers do not fit together.
  void cross(Run& run, ConstBuffer shard, Replica& replica);

 private:
  void encode(Run& run, ConstBuffer shard, const Replica& replica, Buffer sent);
  // all: gets the headers in the device's memory.
  std::vector<WeightHeader> exchange(Run& run, ConstBuffer own, Buffer all);
  void wait_for(const EventPtr& event) const;
  // Why the shards cross whole, the same on all ranks; empty: their differences cross.
  std::string why_whole(Run& run, const std::vector<WeightHeader>& headers) const;
  void gather_whole(Run& run, ConstBuffer shard, Replica& replica) const;
  // in_memory: the headers in the device's memory.
  void gather_packets(Run& run, ConstBuffer shard, ConstBuffer packet, const std::vector<WeightHeader>& headers,
                      ConstBuffer in_memory, Replica& replica);

  const TierSet& tiers_;
  const Options& options_;
  Device& device_;
  const std::function<void()> throw_if_aborted_;
  const std::unique_ptr<WeightCoder> coder_;
  void* headers_on_host_ = nullptr;  // of the gather under way; null before the first one
};

}  // namespace isthmus
