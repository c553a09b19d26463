// How the collectives of a communicator move data. See docs/algorithms.md.
#pragma once

#include <cstdint>

#include "communicator/path/packet_coder.h"
#include "communicator/plan/reduction_plan.h"
#include "communicator/run.h"
#include "communicator/tier_set.h"
#include "isthmus/buffer.h"
#include "isthmus/options.h"

namespace isthmus {

// Paths differ in reductions; gathers are the same on both. The caller has checked sizes and types. Stateless: a
// collective's state is in its Run, its plan, and the unit that the plan names.
class Path {
 public:
  // tiers, device and options outlive it.
  Path(const TierSet& tiers, Device& device, const Options& options)
      : tiers_(tiers), device_(device), options_(options), coder_(device) {}
  virtual ~Path() = default;

  // shard = plan.scale * sum over ranks of this rank's chunk of `gradient`; neither is empty. Equal chunks.
  virtual void reduce_scatter(Run& run, const ReductionPlan& plan, ConstBuffer gradient, Buffer shard) const = 0;

  // data = plan.scale * sum over ranks of `data`, which is not empty. A reduce-scatter whose result is encoded once
  // more, gathered, and decoded by all.
  void all_reduce(Run& run, const ReductionPlan& plan, Buffer data) const;

  // gathered chunk r = rank r's shard, which is not empty: along the rail, then within the node. rail: the shards of
  // this rail, by node, where they have crossed already; empty: they have not.
  void all_gather(Run& run, ConstBuffer shard, Buffer gathered, ConstBuffer rail = {}) const;

 protected:
  const TierSet& tiers_;
  Device& device_;
  const Options& options_;
  const PacketCoder coder_;

 private:
  ConstBuffer in_equal_chunks(Run& run, ConstBuffer data) const;
  Buffer encode_result(Run& run, const ReductionPlan& plan, ConstBuffer result) const;
  void decode_result(Run& run, const ReductionPlan& plan, ConstBuffer packets, Buffer data) const;
  Buffer place_of_packets(int first, int count, int64_t chunk, Buffer data) const;
  void gather(Run& run, ConstBuffer shard, Buffer by_node) const;
  ConstBuffer gather_along_rail(Run& run, ConstBuffer shard, Buffer by_node) const;
  void gather_within_node(Run& run, ConstBuffer rail, bool with_own, Buffer by_node, const EventPtr& ready) const;
};

}  // namespace isthmus
