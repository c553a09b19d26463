// ReduceOp: what a sum is multiplied by, and what to do where a world backend has no PREMUL_SUM.
#pragma once

#include <ATen/core/Tensor.h>

#include <optional>
#include <torch/csrc/distributed/c10d/Types.hpp>
#include <vector>

#include "torch/sides/side.h"

namespace isthmus::torch_backend {

// What a sum over `size` ranks is multiplied by; nothing if `op` is no sum, or that is known to a GPU alone: nobody
// waits for one here.
std::optional<double> sum_scale(const c10d::ReduceOp& op, int size);

// `tensor` as `side` takes it with with_plain_sum(): multiplied, where its world backend does not do that (Gloo).
// Throws TypeError where it would read a factor's memory as if it were of the tensor's type (NCCL).
at::Tensor premultiplied(const at::Tensor& tensor, const c10d::ReduceOp& op, const Side& side);
void premultiply_in_place(std::vector<at::Tensor>& tensors, const c10d::ReduceOp& op, const Side& side);

// A call's options for what was multiplied already.
template <typename CallOptions>
CallOptions with_plain_sum(CallOptions options, const Side& side) {
  if (options.reduceOp.op_ == c10d::ReduceOp::PREMUL_SUM && !side.abilities().premultiplied_sums) {
    options.reduceOp = c10d::ReduceOp(c10d::ReduceOp::SUM);
  }
  return options;
}

}  // namespace isthmus::torch_backend
