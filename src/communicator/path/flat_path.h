// The single-tier baseline (tiers=flat). See docs/algorithms.md, "Single tier".
#pragma once

#include "communicator/path/two_tier_path.h"

namespace isthmus {

// Only reductions differ: gathers, and the gather of an all-reduce's result, are those of two tiers.
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
