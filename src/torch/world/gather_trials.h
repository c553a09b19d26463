// Option gathers=auto on a GPU: each size of a gather is tried in two tiers and by the world backend, and the faster
// way stays. Both give the same bits. docs/operating.md, "All-gathers"
#pragma once

#include <ATen/core/Tensor.h>

#include <functional>
#include <map>
#include <mutex>
#include <vector>

#include "torch/sides/side.h"
#include "torch/sides/sides.h"
#include "torch/world/world_calls.h"

namespace isthmus::torch_backend {

// What was found of gathers of up to `max_bytes` and more than half of that, of the gathered whole. Seconds: of one
// gather on the slowest rank.
struct GatherTrial {
  int64_t max_bytes = 0;
  double tiers_s = 0;
  double world_s = 0;
  int64_t calls = 0;  // gathers of this size since then, or since reset_stats()

  bool world_is_faster() const;
};

// Called by the threads that make the group's calls, in program order: the first gather of a size is made several
// times, which is collective and blocks. `mutex_` is not held meanwhile.
class GatherTrials {
 public:
  GatherTrials(const Sides& sides, WorldCalls& calls) : sides_(sides), calls_(calls) {}

  // With gathers=auto: whether the world backend gathers tensors of this size faster; false where nothing is tried.
  // output: on that side.
  // in_tiers, by_world: make the gather, as often as they are called.
  bool world_is_faster(Side& side, const at::Tensor& output, const std::function<WorkPtr()>& in_tiers,
                       const std::function<WorkPtr()>& by_world);

  std::vector<GatherTrial> trials() const;  // by size
  void reset_stats();                       // not what was found

 private:
  GatherTrial try_both(Side& side, int64_t max_bytes, const std::function<WorkPtr()>& in_tiers,
                       const std::function<WorkPtr()>& by_world);

  const Sides& sides_;
  WorldCalls& calls_;

  mutable std::mutex mutex_;               // guards what follows
  std::map<int64_t, GatherTrial> trials_;  // by max_bytes
};

}  // namespace isthmus::torch_backend
