// How a communicator's collectives move their data. See docs/algorithms.md.
#pragma once

#include <cstdint>
#include <functional>
#include <vector>

#include "communicator/path/packet_coder.h"
#include "communicator/plan/reduction_planner.h"
#include "communicator/run/run.h"
#include "communicator/run/tier_set.h"
#include "isthmus/buffer.h"
#include "isthmus/options.h"

namespace isthmus {

// Gathers, and the gather of an all-reduce's result, are those of two tiers on every path; paths differ in how they
// reduce. Callers have checked sizes and types. It is stateless: a collective's state is in its Run, its plan, and the
// plan's unit.
class Path {
 public:
  // tiers, device and options outlive it.
  Path(const TierSet& tiers, Device& device, const Options& options)
      : tiers_(tiers), device_(device), options_(options), coder_(device) {}
  virtual ~Path() = default;

  // shard = plan.scale * sum over ranks of this rank's chunk of `gradient`. Chunks are equal, and neither buffer is
  // empty. The shard is written on the decode lane alone.
  virtual void reduce_scatter(Run& run, const ReductionPlan& plan, ConstBuffer gradient, Buffer shard) const = 0;

  // data = plan.scale * sum over ranks of `data`, which is not empty. It is a reduce-scatter whose result is encoded
  // again and gathered; every rank decodes it.
  void all_reduce(Run& run, const ReductionPlan& plan, Buffer data) const;

  // Chunk r of `gathered` = rank r's shard, which is not empty. It goes along the rail, then within the node. rail: the
  // shards of this rail, by node, if they have crossed already; else empty.
  void all_gather(Run& run, ConstBuffer shard, Buffer gathered, ConstBuffer rail = {}) const;

 protected:
  // Copies every rank's equal part from rank order to the order of nodes (by_node), or back.
  void reorder(ConstBuffer in, Buffer out, bool by_node, Stream stream) const;
  // Packets tell another node's ranks which unit they are of, but what the ranks of a tier sum would be added up,
  // though one of them had skipped or repeated a call. So they tell each other, beside the sums. On the CPU the handle
  // throws PacketError where units differ; on a GPU the tier's sums are of no use before refuse_other_units().
  HandlePtr tell_unit(Run& run, const ReductionPlan& plan, Transport& tier) const;
  // On a GPU: reports a fault where the units that were told differ, and spoils the packets made of the tier's sums, so
  // that their receivers refuse them as another unit's. May be called without packets.
  void refuse_other_units(Run& run, const ReductionPlan& plan, Buffer packets, int num_packets) const;
  // Starts `first`, where it is given, and an operation of a tier for each owner, all as one, and waits in that order.
  static void run_for_owners(Transport& tier, const std::vector<int>& owners, Stream stream,
                             const std::function<HandlePtr()>& first, const std::function<HandlePtr(int)>& start);
  // Waits for an operation between nodes, if there is one. Only the CPU waits here: on a GPU a lane waits for `done`.
  void wait_on_host(Run& run, Phase phase, const HandlePtr& handle, const EventPtr& done) const;

  const TierSet& tiers_;
  Device& device_;
  const Options& options_;
  const PacketCoder coder_;

 private:
  // Called when the shards of these nodes are there, while others may still cross.
  using Arrived = std::function<void(int first_node, int num_nodes)>;

  // The shards of a rail on their way, by node.
  struct RailCrossing {
    ConstBuffer shards;
    HandlePtr handle;  // null: they are there
    EventPtr done;
  };

  // The steps of all_reduce().
  ConstBuffer in_equal_chunks(Run& run, ConstBuffer data) const;
  Buffer encode_result(Run& run, const ReductionPlan& plan, ConstBuffer result) const;
  void decode_result(Run& run, const ReductionPlan& plan, ConstBuffer packets, int first_node, int num_nodes,
                     Buffer spare, Buffer data) const;
  Buffer place_of_packets(int first, int count, int64_t chunk, Buffer data) const;

  // The steps of all_gather().
  void gather(Run& run, ConstBuffer shard, Buffer by_node, const Arrived& arrived = {}) const;
  RailCrossing gather_along_rail(Run& run, ConstBuffer shard, Buffer by_node) const;
  void gather_within_node(Run& run, ConstBuffer rail, bool with_own, Buffer by_node, const EventPtr& ready) const;
};

}  // namespace isthmus
