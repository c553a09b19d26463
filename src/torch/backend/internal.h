// What the sources of BackendIsthmus share.
#pragma once

#include <ATen/core/grad_mode.h>
#include <ATen/ops/empty.h>
#include <pybind11/pybind11.h>

#include <algorithm>
#include <chrono>
#include <exception>
#include <optional>
#include <string>

#include "torch/backend/backend.h"

namespace isthmus::torch_backend {

// What a timeout that means "never" becomes: deadlines are counted in nanoseconds.
inline constexpr std::chrono::milliseconds kLongestTimeout = std::chrono::hours(24 * 3650);
// How long a rank that failed waits for the others' reports.
inline constexpr std::chrono::milliseconds kReportPatience{2000};

// What the hops of an operation may take, so that its error, which names who is missing, comes within the timeout.
inline std::chrono::milliseconds without_report(std::chrono::milliseconds timeout) {
  timeout = std::min(timeout, kLongestTimeout);
  return timeout - std::min(kReportPatience, timeout / 4);
}

// What option `gradients` says.
inline bool gradients_in_backward(const std::string& mode) { return mode == "backward"; }

// torch.distributed.DistBackendError
inline std::exception_ptr dist_error(const std::string& text) {
  try {
    TORCH_CHECK_WITH(DistBackendError, false, text);
  } catch (...) {
    return std::current_exception();
  }
}

// Releases the GIL where this thread has it. Torch calls and drops backends with it or without, and a worker may need
// it to get done.
class WithoutGil {
 public:
  WithoutGil() {
    if (Py_IsInitialized() != 0 && PyGILState_Check() != 0) {
      released_.emplace();
    }
  }

 private:
  std::optional<pybind11::gil_scoped_release> released_;
};

// "4096 x Float": for reports of faults.
inline std::string describe(int64_t num_elements, const at::Tensor& like) {
  return c10::str(num_elements, " x ", like.scalar_type());
}

inline at::Tensor contiguous(const at::Tensor& tensor) {
  const at::NoGradGuard no_grad;
  return tensor.contiguous();
}

// `output`, or contiguous memory for what will be copied there.
inline at::Tensor contiguous_stand_in(const at::Tensor& output) {
  return output.is_contiguous() ? output : at::empty(output.sizes(), output.options(), at::MemoryFormat::Contiguous);
}

// Both in one dimension, as far as the output's memory allows: Gloo insists on shapes that callers of the two-tier path
// need not know.
inline void flatten(at::Tensor& output, at::Tensor& input) {
  if (output.is_contiguous()) {
    output = output.view({-1});
    input = input.reshape({-1});
  }
}

inline bool is_cuda(const std::vector<at::Tensor>& tensors) { return !tensors.empty() && tensors[0].is_cuda(); }

// "what failed", without the places in sources that torch appends.
inline std::string first_line(const std::string& text) { return text.substr(0, text.find('\n')); }

}  // namespace isthmus::torch_backend
