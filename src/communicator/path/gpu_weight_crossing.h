// Sends weights between nodes from GPU to GPU, as bit-exact differences to what crossed before. The host fixes the room
// for packets beforehand. See docs/weights.md.
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

// The thread that calls collectives uses it; any thread may call look() and release().
class GpuWeightCrossing {
 public:
  // Needs several nodes and tiers.host_inter. fail: aborts the communicator; any thread may call it. All arguments
  // outlive this object.
  GpuWeightCrossing(const TierSet& tiers, const Options& options, GpuDevice& device, Statistics& statistics,
                    std::function<void(const std::string&)> fail);

  // Enqueues the update of the replica to the shards that the ranks of the rail have now. Waits for the GPU only where
  // it is a step behind, and counts that. The replica is in use until finish().
  void cross(Run& run, ConstBuffer shard, const UnitKey& unit, Replica& replica);
  // Marks the work enqueued so far as the gather's last use of the replica.
  static void finish(Run& run, Replica& replica);

  // Any thread may call these two: look() reads the statistics that are there, release() ends the GPU's waits.
  void look() { watch_.look(); }
  void release() { watch_.release(); }

 private:
  WeightHeader make_header(ConstBuffer shard, const Replica& replica) const;
  // Returns mapped memory. None is freed before the end, because unfinished work may still read it.
  std::byte* take_mapped(int64_t bytes);
  // Makes room for a shard and the shards of its rail. The decoding lane uses it for one gather after another.
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
