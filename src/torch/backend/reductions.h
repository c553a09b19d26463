// Reductions of a process group: those that are gradients go in two tiers, the others to the world backend.
#pragma once

#include <ATen/core/Tensor.h>

#include <chrono>
#include <optional>
#include <torch/csrc/distributed/c10d/Types.hpp>
#include <vector>

#include "torch/backend/group.h"
#include "torch/sides/sides.h"
#include "torch/units/device_units.h"
#include "torch/units/gradient_recogniser.h"
#include "torch/world/world_calls.h"

namespace isthmus::torch_backend {

// Called by the threads that make the group's calls. Stateless. side: that of the first tensor. See c10d::Backend.
class Reductions {
 public:
  Reductions(const Group& group, const Sides& sides, CallCounters& counters, WorldCalls& calls,
             GradientRecogniser& recogniser, DeviceUnits& units)
      : group_(group), sides_(sides), counters_(counters), calls_(calls), recogniser_(recogniser), units_(units) {}

  WorkPtr all_reduce(Side& side, std::vector<at::Tensor>& tensors, const c10d::AllreduceOptions& options);
  WorkPtr all_reduce_sparse(Side& side, std::vector<at::Tensor>& tensors, const c10d::AllreduceOptions& options);
  WorkPtr all_reduce_coalesced(Side& side, std::vector<at::Tensor>& tensors,
                               const c10d::AllreduceCoalescedOptions& options);
  WorkPtr reduce(Side& side, std::vector<at::Tensor>& tensors, const c10d::ReduceOptions& options);
  WorkPtr reduce_scatter(Side& side, at::Tensor& output, at::Tensor& input, const c10d::ReduceScatterOptions& options);
  WorkPtr reduce_scatter_coalesced(Side& side, std::vector<at::Tensor>& outputs, std::vector<at::Tensor>& inputs,
                                   const c10d::ReduceScatterOptions& options);
  WorkPtr reduce_scatter_lists(Side& side, std::vector<at::Tensor>& outputs,
                               std::vector<std::vector<at::Tensor>>& inputs, const c10d::ReduceScatterOptions& options);

 private:
  WorkPtr submit_all_reduce(Side& side, const at::Tensor& tensor, const Gradient& gradient,
                            std::chrono::milliseconds timeout);
  WorkPtr submit_reduce_scatter(Side& side, const at::Tensor& output, const at::Tensor& input, const Gradient& gradient,
                                std::chrono::milliseconds timeout);
  WorkPtr submit(Side& side, TwoTierCall call, const Gradient& gradient);
  WorkPtr combined(c10d::OpType type, std::vector<WorkPtr> works, const std::vector<at::Tensor>& outputs) const;

  const Group& group_;
  const Sides& sides_;
  CallCounters& counters_;
  WorldCalls& calls_;
  GradientRecogniser& recogniser_;
  DeviceUnits& units_;
};

}  // namespace isthmus::torch_backend
