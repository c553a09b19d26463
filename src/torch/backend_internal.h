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

#include "torch/backend.h"

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

// Runs `action` on `output`, or on a contiguous stand-in that is copied back.
template <typename Action>
void with_contiguous(const at::Tensor& output, Action action) {
  if (output.is_contiguous()) {
    action(output);
    return;
  }
  const at::NoGradGuard no_grad;
  at::Tensor stand_in = at::empty(output.sizes(), output.options());
  action(stand_in);
  output.copy_(stand_in);
}

}  // namespace isthmus::torch_backend
