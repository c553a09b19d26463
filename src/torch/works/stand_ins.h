// What a world backend is handed in place of tensors whose memory it would misread.
#pragma once

#include <ATen/core/Tensor.h>

#include <functional>
#include <vector>

#include "torch/works/work.h"

namespace isthmus::torch_backend {

// Whether the elements, in some order, are the tensor's whole memory. Sparse tensors have no gaps.
bool has_gaps(const at::Tensor& tensor);
bool is_not_contiguous(const at::Tensor& tensor);

// Returns the tensor, or a view of one dimension of a tensor that has none, as shape[0] is the first thing that Gloo
// looks at.
at::Tensor at_least_1d(const at::Tensor& tensor);
std::vector<at::Tensor> at_least_1d(const std::vector<at::Tensor>& tensors);

// Contiguous tensors with the same numbers for those of a call's tensors that need it; the others are handed over
// themselves.
class StandIns {
 public:
  // needed: tells which; null: none. written: whether the call writes them on this rank. Throws ValueError, which names
  // the call, if so and elements of one that needs a stand-in share memory.
  StandIns(const char* call, const std::vector<at::Tensor>& tensors, bool (*needed)(const at::Tensor&),
           bool written = true);

  std::vector<at::Tensor>& tensors() { return tensors_; }
  const std::vector<at::Tensor>& tensors() const { return tensors_; }
  // Returns a Work that is done when `work` is and the caller's tensors hold what was written.
  WorkPtr written_back(const WorkPtr& work) const;
  // The same of a Work that has no Future: whoever waits, or asks whether it is done, copies.
  WorkPtr written_back_by_waiter(const WorkPtr& work) const;

 private:
  bool all_same() const;
  std::function<void()> write_back() const;

  const std::vector<at::Tensor> originals_;
  const bool written_;
  std::vector<at::Tensor> tensors_;
};

}  // namespace isthmus::torch_backend
