#include "torch/base/reduce_ops.h"

#include <ATen/core/grad_mode.h>

#include "torch/base/tensors.h"

namespace isthmus::torch_backend {
namespace {

const c10d::NCCLPreMulSumSupplement* premultiplier(const c10d::ReduceOp& op) {
  if (op.op_ != c10d::ReduceOp::PREMUL_SUM) {
    return nullptr;
  }
  const auto* factor = dynamic_cast<const c10d::NCCLPreMulSumSupplement*>(op.supplement_.get());
  TORCH_CHECK_VALUE(factor != nullptr, "isthmus: a PREMUL_SUM without a factor");
  return factor;
}

}  // namespace

std::optional<double> sum_scale(const c10d::ReduceOp& op, int size) {
  if (op.op_ == c10d::ReduceOp::SUM) {
    return 1.0;
  }
  if (op.op_ == c10d::ReduceOp::AVG) {
    return 1.0 / size;
  }
  if (const auto* factor = premultiplier(op)) {
    const at::Tensor& tensor = factor->tensor_factor;
    if (!tensor.defined()) {
      return factor->double_factor;
    }
    if (tensor.is_cpu()) {
      return tensor.item<double>();
    }
  }
  return std::nullopt;
}

at::Tensor premultiplied(const at::Tensor& tensor, const c10d::ReduceOp& op, const WorldAbilities& world) {
  const at::NoGradGuard no_grad;
  const auto* factor = premultiplier(op);
  if (factor == nullptr) {
    return tensor;
  }
  const at::Tensor& number = factor->tensor_factor;
  if (world.premultiplied_sums) {
    TORCH_CHECK_TYPE(!number.defined() || number.scalar_type() == tensor.scalar_type(), "isthmus: a PREMUL_SUM of ",
                     tensor.scalar_type(), " by a tensor of ", number.defined() ? number.scalar_type() : at::kFloat,
                     ": on GPUs both must be of one type");
    return tensor;
  }
  const at::Tensor product = number.defined() ? tensor.mul(number) : tensor.mul(factor->double_factor);
  return product.to(tensor.scalar_type()).reshape(tensor.sizes());  // a factor of one element adds a dimension
}

void premultiply_in_place(std::vector<at::Tensor>& tensors, const c10d::ReduceOp& op, const WorldAbilities& world) {
  for (auto& tensor : tensors) {
    const at::Tensor product = premultiplied(tensor, op, world);
    if (!product.is_same(tensor)) {
      write(tensor, product);
    }
  }
}

}  // namespace isthmus::torch_backend
