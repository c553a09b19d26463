// How weights cross between nodes from GPU to GPU: as bit-exact differences to what crossed before, in packets whose
// room is known beforehand. docs/weights.md
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "codec/gpu_device.h"
#include "communicator/path/weight_watch.h"
#include "communicator/run/run.h"
#include "communicator/run/tier_set.h"
#include "communicator/units/weight_replicas.h"
#include "isthmus/options.h"

namespace isthmus {

// Used by the thread that calls the collectives, but for look() and release().
class GpuWeightCrossing {
 public:
  // There are several nodes, and tiers.host_inter. fail: aborts the communicator; from any thread. All outlive it.
  GpuWeightCrossing(const TierSet& tiers, const Options& options, GpuDevice& device, Statistics& statistics,
                    std::function<void(const std::string&)> fail);

  // Enqueues what brings the replica up to date: its shards become those that the ranks of the rail have now. Waits for
  // the GPU only where it runs behind by a step (counted). The replica is used until finish().
  void cross(Run& run, ConstBuffer shard, const UnitKey& unit, Replica& replica);
  // What was enqueued so far is the last use of the replica in this gather.
  static void finish(Run& run, Replica& replica);

  // From any thread: reads what is there of statistics; lets the GPU wait for nothing any more.
  void look() { watch_.look(); }
  void release() { watch_.release(); }

 private:
  WeightHeader make_header(ConstBuffer shard, const Replica& replica) const;
  // Mapped memory, of which nothing is freed before the end: work that is under way may still look at it.
  std::byte* take_mapped(int64_t bytes);
  // For a shard and those of its rail. The decoding lane uses it for one gather after another.
  void make_room(ConstBuffer shard);

  const TierSet& tiers_;
  const Options& options_;
  GpuDevice& device_;
  std::vector<std::shared_ptr<std::byte>> mapped_;
  std::byte* free_ = nullptr;  // the rest of the last piece for outcomes
  int64_t free_bytes_ = 0;
  std::byte* room_ = nullptr;
  int64_t room_bytes_ = 0;
  WeightWatch watch_;
};

}  // namespace isthmus
