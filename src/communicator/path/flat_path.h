// The single-tier baseline (tiers=flat), on the CPU alone. See docs/algorithms.md, "Single tier".
#pragma once

#include "communicator/path/path.h"

namespace isthmus {

class FlatPath final : public Path {
 public:
  using Path::Path;

  void reduce_scatter(Run& run, const ReductionPlan& plan, ConstBuffer gradient, Buffer shard) const override;

 private:
  Buffer sum_plainly(Run& run, ConstBuffer gradient) const;
  Buffer sum_tagc(Run& run, const ReductionPlan& plan, ConstBuffer gradient, Buffer sum) const;
};

}  // namespace isthmus
