// Conversions between torch's tensors and the core's buffers and types.
#pragma once

#include <ATen/core/Tensor.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/empty.h>
#include <c10/core/InferenceMode.h>
#include <c10/core/ScalarType.h>

#include <cstdint>
#include <optional>
#include <string>
#include <torch/csrc/distributed/c10d/Types.hpp>
#include <vector>

#include "isthmus/buffer.h"

namespace isthmus::torch_backend {

// Returns the type in which the two-tier path can reduce such a tensor, if it can.
inline std::optional<DataType> floating_dtype(at::ScalarType type) {
  switch (type) {
    case at::kFloat:
      return DataType::kFloat32;
    case at::kBFloat16:
      return DataType::kBFloat16;
    case at::kHalf:
      return DataType::kFloat16;
    case at::kDouble:
      return DataType::kFloat64;
    default:  // torch has 40 more
      return std::nullopt;
  }
}

// Returns "4096 x Float", for fault reports.
inline std::string describe(int64_t num_elements, const at::Tensor& like) {
  return c10::str(num_elements, " x ", like.scalar_type());
}

// Writes into a caller's tensor, on any thread. The guard is needed for tensors made in torch.inference_mode(), which
// can be written only in that mode; all others can be written in it too.
inline void write(const at::Tensor& output, const at::Tensor& value, bool non_blocking = false) {
  const c10::InferenceMode may_write;
  output.copy_(value, non_blocking);
}

inline at::Tensor contiguous(const at::Tensor& tensor) {
  const at::NoGradGuard no_grad;
  return tensor.contiguous();
}

// Returns `output` if it is contiguous, else contiguous memory whose contents are later copied to it.
inline at::Tensor contiguous_stand_in(const at::Tensor& output) {
  return output.is_contiguous() ? output : at::empty(output.sizes(), output.options(), at::MemoryFormat::Contiguous);
}

// Returns what a PREMUL_SUM multiplies by; null for other operations.
inline const c10d::NCCLPreMulSumSupplement* premultiplier(const c10d::ReduceOp& op) {
  if (op.op_ != c10d::ReduceOp::PREMUL_SUM) {
    return nullptr;
  }
  const auto* factor = dynamic_cast<const c10d::NCCLPreMulSumSupplement*>(op.supplement_.get());
  TORCH_CHECK_VALUE(factor != nullptr, "isthmus: a PREMUL_SUM without a factor");
  return factor;
}

// Returns the bytes that a call has to carry of a tensor, whatever its strides; those of a sparse one's entries.
inline int64_t payload_bytes(const at::Tensor& tensor) {
  if (tensor.layout() == at::kSparse) {
    return payload_bytes(tensor._indices()) + payload_bytes(tensor._values());
  }
  return tensor.numel() * static_cast<int64_t>(tensor.element_size());
}
inline int64_t payload_bytes(const std::vector<at::Tensor>& tensors) {
  int64_t bytes = 0;
  for (const auto& tensor : tensors) {
    bytes += payload_bytes(tensor);
  }
  return bytes;
}

// Returns the memory of a contiguous tensor.
inline Buffer byte_buffer(const at::Tensor& tensor) {
  return {tensor.data_ptr(), static_cast<int64_t>(tensor.nbytes()), DataType::kByte};
}

}  // namespace isthmus::torch_backend
