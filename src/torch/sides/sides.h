// The CPU and CUDA sides of a process group.
#pragma once

#include <ATen/core/Tensor.h>

#include <string>
#include <utility>
#include <vector>

#include "torch/sides/side.h"

namespace isthmus::torch_backend {

// Never changes: any thread reads it without a lock.
class Sides {
 public:
  // cuda: null if the group works on CPU tensors alone; no_cuda tells people why: "rank 3 has no GPU".
  Sides(Side& cpu, Side* cuda, std::string no_cuda)
      : cpu_(cpu),
        cuda_(cuda),
        no_cuda_(std::move(no_cuda)),
        all_(cuda != nullptr ? std::vector<Side*>{&cpu, cuda} : std::vector<Side*>{&cpu}) {}

  Side& cpu() const { return cpu_; }
  bool has_cuda() const { return cuda_ != nullptr; }
  // Throws DistBackendError, which names `call`, if there is none.
  Side& cuda(const char* call) const {
    TORCH_CHECK_WITH(DistBackendError, cuda_ != nullptr, "isthmus: ", call,
                     " of CUDA tensors: this process group works on ", "CPU tensors alone: ", no_cuda_);
    return *cuda_;
  }
  // Returns the side that works on `tensor`, or on tensors like the first one.
  Side& of(const char* call, const at::Tensor& tensor) const { return tensor.is_cuda() ? cuda(call) : cpu_; }
  Side& of(const char* call, const std::vector<at::Tensor>& tensors) const {
    return tensors.empty() ? cpu_ : of(call, tensors[0]);
  }
  // The CPU's first.
  const std::vector<Side*>& all() const { return all_; }

 private:
  Side& cpu_;
  Side* const cuda_;
  const std::string no_cuda_;
  const std::vector<Side*> all_;
};

}  // namespace isthmus::torch_backend
