// ReduceOp: what a sum is multiplied by, and what to do where a world backend has no PREMUL_SUM.
#pragma once

#include <ATen/core/Tensor.h>

#include <optional>
#include <torch/csrc/distributed/c10d/Types.hpp>
#include <vector>

namespace isthmus::torch_backend {

// Features that only some world backends have.
struct WorldAbilities {
  bool premultiplied_sums = false;  // ReduceOp::PREMUL_SUM
  bool all_to_all_of_lists = false;
  bool coalesced_gathers = false;
  bool groups = false;  // calls between its startCoalescing() and endCoalescing() start together
};

// Returns the factor of a sum over `size` ranks; nothing if `op` is no sum, or if the factor is in GPU memory, where
// reading it would block.
std::optional<double> sum_scale(const c10d::ReduceOp& op, int size);

// Multiplies `tensor` for a call with with_plain_sum(), if the world backend does not multiply (Gloo). Throws TypeError
// if the world backend would misread a factor of another type (NCCL).
at::Tensor premultiplied(const at::Tensor& tensor, const c10d::ReduceOp& op, const WorldAbilities& world);
void premultiply_in_place(std::vector<at::Tensor>& tensors, const c10d::ReduceOp& op, const WorldAbilities& world);

// Returns the call's options for tensors that are multiplied already.
template <typename CallOptions>
CallOptions with_plain_sum(CallOptions options, const WorldAbilities& world) {
  if (options.reduceOp.op_ == c10d::ReduceOp::PREMUL_SUM && !world.premultiplied_sums) {
    options.reduceOp = c10d::ReduceOp(c10d::ReduceOp::SUM);
  }
  return options;
}

}  // namespace isthmus::torch_backend
