// The main path: sums within the node, compressed packets between nodes. See docs/algorithms.md.
#pragma once

#include <cstdint>

#include "communicator/path/packet_coder.h"
#include "communicator/path/segments.h"
#include "communicator/plan/reduction_planner.h"
#include "communicator/run/run.h"
#include "communicator/run/tier_set.h"
#include "isthmus/buffer.h"
#include "isthmus/options.h"

namespace isthmus {

// Moves the data of a communicator's collectives. Callers have checked sizes and types. It is stateless: a collective's
// state is in its Run, its plan, and the plan's unit.
class TwoTierPath {
 public:
  // tiers, device and options outlive it.
  TwoTierPath(const TierSet& tiers, Device& device, const Options& options)
      : tiers_(tiers), device_(device), options_(options), coder_(device) {}
  virtual ~TwoTierPath() = default;

  // shard = plan.scale * sum over ranks of this rank's chunk of `gradient`. Chunks are equal, and neither buffer is
  // empty.
  virtual void reduce_scatter(Run& run, const ReductionPlan& plan, ConstBuffer gradient, Buffer shard) const;

  // data = plan.scale * sum over ranks of `data`, which is not empty. It is a reduce-scatter whose result is encoded
  // again and gathered; every rank decodes it.
  void all_reduce(Run& run, const ReductionPlan& plan, Buffer data) const;

  // Chunk r of `gathered` = rank r's shard, which is not empty. It goes along the rail, then within the node. rail: the
  // shards of this rail, by node, if they have crossed already; else empty.
  void all_gather(Run& run, ConstBuffer shard, Buffer gathered, ConstBuffer rail = {}) const;

 protected:
  const TierSet& tiers_;
  Device& device_;
  const Options& options_;
  const PacketCoder coder_;

 private:
  // A segment of pieces on its way to the nodes that own them.
  struct Crossing {
    const Segment* segment;
    Buffer arrived;  // a packet of each node, at its place; this node's own place is unspecified
    HandlePtr handle;
    EventPtr done;
  };

  // What is summed within the node, and where to; both by node.
  struct Pieces {
    ConstBuffer gradient;  // empty: `sums` is filled already
    Buffer sums;
  };

  // The steps of reduce_scatter(). Each runs on its own lane.
  Pieces take_pieces(Run& run, ConstBuffer gradient) const;
  Buffer one_rank_of_node(Run& run, ConstBuffer gradient, DataType dtype) const;
  EventPtr sum_within_node(Run& run, const Pieces& pieces, bool own, const EventPtr& ready) const;
  Buffer encode(Run& run, const ReductionPlan& plan, ConstBuffer pieces, const EventPtr& summed,
                const Segment& segment) const;
  Crossing exchange_along_rail(Run& run, Buffer packets, const Segment& segment) const;
  void decode(Run& run, const ReductionPlan& plan, ConstBuffer pieces, const EventPtr& own_summed, Crossing& crossing,
              Buffer shard) const;
  void wait_on_host(Run& run, Crossing& crossing) const;
  int64_t wanted_segments(const ReductionPlan& plan, int64_t num_elements) const;

  // The steps of all_reduce().
  ConstBuffer in_equal_chunks(Run& run, ConstBuffer data) const;
  Buffer encode_result(Run& run, const ReductionPlan& plan, ConstBuffer result) const;
  void decode_result(Run& run, const ReductionPlan& plan, ConstBuffer packets, Buffer data) const;
  Buffer place_of_packets(int first, int count, int64_t chunk, Buffer data) const;

  // The steps of all_gather().
  void gather(Run& run, ConstBuffer shard, Buffer by_node) const;
  ConstBuffer gather_along_rail(Run& run, ConstBuffer shard, Buffer by_node) const;
  void gather_within_node(Run& run, ConstBuffer rail, bool with_own, Buffer by_node, const EventPtr& ready) const;
};

// The single-tier baseline (tiers=flat): docs/algorithms.md, "Single tier". Only reductions differ: gathers, and the
// gather of an all-reduce's result, are those of two tiers.
class FlatPath final : public TwoTierPath {
 public:
  using TwoTierPath::TwoTierPath;

  void reduce_scatter(Run& run, const ReductionPlan& plan, ConstBuffer gradient, Buffer shard) const override;

 private:
  SumType sum_type(DataType dtype) const;
  void sum_plainly(Run& run, ConstBuffer gradient, Buffer sum) const;
  void sum_tagc(Run& run, const ReductionPlan& plan, ConstBuffer gradient, Buffer sum) const;
  void merge_indexes(Run& run, TagcFlat& tagc_flat, Buffer indexes) const;
};

}  // namespace isthmus
