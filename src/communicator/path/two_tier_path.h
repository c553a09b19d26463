// The main path: summed within the node, compressed between nodes.
#pragma once

#include "communicator/path/path.h"
#include "communicator/path/segments.h"

namespace isthmus {

class TwoTierPath final : public Path {
 public:
  using Path::Path;

  void reduce_scatter(Run& run, const ReductionPlan& plan, ConstBuffer gradient, Buffer shard) const override;

 private:
  // A segment of the pieces, on its way to the nodes that own it.
  struct Crossing {
    const Segment* segment;
    Buffer packets;  // one for each node, at its place
    Buffer arrived;  // likewise; this node's own place is unspecified
    HandlePtr handle;
    EventPtr done;
  };

  // The lines of reduce_scatter(). Each runs on a lane of its own.
  ConstBuffer sum_within_node(Run& run, ConstBuffer gradient) const;
  Buffer encode(Run& run, const ReductionPlan& plan, ConstBuffer pieces, const EventPtr& summed,
                const Segment& segment) const;
  Crossing exchange_along_rail(Run& run, Buffer packets, const Segment& segment) const;
  void decode_sum(Run& run, const ReductionPlan& plan, ConstBuffer pieces, Crossing& crossing, Buffer sum) const;
  void wait_on_host(Run& run, Crossing& crossing) const;
};

}  // namespace isthmus
