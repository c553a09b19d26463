// The main path: sums within the node, compressed packets between nodes. See docs/algorithms.md.
#pragma once

#include <cstdint>

#include "communicator/path/path.h"
#include "communicator/path/segments.h"

namespace isthmus {

class TwoTierPath final : public Path {
 public:
  using Path::Path;

  void reduce_scatter(Run& run, const ReductionPlan& plan, ConstBuffer gradient, Buffer shard) const override;

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
  EventPtr sum_within_node(Run& run, const ReductionPlan& plan, const Pieces& pieces, bool own,
                           const EventPtr& ready) const;
  Buffer encode(Run& run, const ReductionPlan& plan, ConstBuffer pieces, const EventPtr& summed,
                const Segment& segment) const;
  Crossing exchange_along_rail(Run& run, Buffer packets, const Segment& segment) const;
  void decode(Run& run, const ReductionPlan& plan, ConstBuffer pieces, const EventPtr& own_summed, Crossing& crossing,
              Buffer shard) const;
  int64_t wanted_segments(const ReductionPlan& plan, int64_t num_elements) const;
};

}  // namespace isthmus
