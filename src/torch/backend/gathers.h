// All-gathers of a process group: in two tiers, or by the world backend.
#pragma once

#include <ATen/core/Tensor.h>

#include <chrono>
#include <optional>
#include <torch/csrc/distributed/c10d/Types.hpp>
#include <vector>

#include "torch/backend/group.h"
#include "torch/sides/sides.h"
#include "torch/units/weight_recogniser.h"
#include "torch/world/world_calls.h"

namespace isthmus::torch_backend {

// Called by the threads that make the group's calls. Stateless. side: that of the first input. See c10d::Backend.
class Gathers {
 public:
  Gathers(const Group& group, const Sides& sides, CallCounters& counters, WorldCalls& calls, WeightRecogniser& weights)
      : group_(group), sides_(sides), counters_(counters), calls_(calls), weights_(weights) {}

  WorkPtr gather(Side& side, at::Tensor output, at::Tensor input, const c10d::AllgatherOptions& options);
  WorkPtr gather_lists(Side& side, std::vector<std::vector<at::Tensor>>& outputs, std::vector<at::Tensor>& inputs,
                       const c10d::AllgatherOptions& options);
  WorkPtr gather_coalesced(Side& side, std::vector<at::Tensor>& outputs, std::vector<at::Tensor>& inputs,
                           const c10d::AllgatherOptions& options);
  WorkPtr gather_lists_coalesced(Side& side, std::vector<std::vector<at::Tensor>>& outputs,
                                 std::vector<at::Tensor>& inputs, const c10d::AllgatherOptions& options);

 private:
  bool takes_two_tiers(const at::Tensor& output, const at::Tensor& input) const;
  WorkPtr gather_by_world(Side& side, at::Tensor output, at::Tensor input, const c10d::AllgatherOptions& options);
  // unit: whose weights are gathered; nothing: nobody's.
  WorkPtr submit(Side& side, const at::Tensor& output, const at::Tensor& input, std::chrono::milliseconds timeout,
                 const std::optional<UnitKey>& unit = std::nullopt);

  const Group& group_;
  const Sides& sides_;
  CallCounters& counters_;
  WorldCalls& calls_;
  WeightRecogniser& weights_;
};

}  // namespace isthmus::torch_backend
