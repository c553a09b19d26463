// The single-tier baseline (tiers=flat), on the CPU alone. See docs/algorithms.md, "Single tier".
#pragma once

#include "communicator/path/two_tier_path.h"

namespace isthmus {

// Only reductions differ: gathers, and the gather of an all-reduce's result, are those of two tiers.
class FlatPath final : public TwoTierPath {
 public:
  using TwoTierPath::TwoTierPath;

  void reduce_scatter(Run& run, const ReductionPlan& plan, ConstBuffer gradient, Buffer shard) const override;

 private:
  Buffer sum_plainly(Run& run, ConstBuffer gradient) const;
  Buffer sum_tagc(Run& run, const ReductionPlan& plan, ConstBuffer gradient, Buffer shard) const;
};

}  // namespace isthmus
