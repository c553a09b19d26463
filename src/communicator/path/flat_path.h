// The single-tier baseline (tiers=flat): docs/algorithms.md, "Single tier".
#pragma once

#include "communicator/path/path.h"

namespace isthmus {

class FlatPath final : public Path {
 public:
  using Path::Path;

  void reduce_scatter(Run& run, const ReductionPlan& plan, ConstBuffer gradient, Buffer shard) const override;

 private:
  SumType sum_type(DataType dtype) const;
  void sum_plainly(Run& run, ConstBuffer gradient, Buffer sum) const;
  void sum_tagc(Run& run, const ReductionPlan& plan, ConstBuffer gradient, Buffer sum) const;
  void merge_indexes(Run& run, TagcFlat& tagc_flat, Buffer indexes) const;
};

}  // namespace isthmus
