// Python's global lock and handlers of its signals, in the backend.
#pragma once

#include <pybind11/pybind11.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <exception>
#include <optional>
#include <torch/csrc/distributed/c10d/Work.hpp>

namespace isthmus::torch_backend {

// Releases the GIL if this thread holds it. Torch calls and destroys backends with or without it, and a worker may need
// it to finish.
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

// Python runs handlers in its main thread alone, which is the process's.
inline bool runs_signal_handlers() { return syscall(SYS_gettid) == getpid() && Py_IsInitialized() != 0; }

// Runs the handlers of signals that have come, in that thread. Throws error_already_set if one raises.
inline void run_signal_handlers() {
  if (!runs_signal_handlers()) {
    return;
  }
  const pybind11::gil_scoped_acquire gil;
  if (PyErr_CheckSignals() != 0) {
    throw pybind11::error_already_set();
  }
}

// Waits for `work` by wait(timeout), which throws once the timeout is over, in parts, so that handlers run between
// them.
template <typename Wait>
bool wait_with_signals(c10d::Work& work, std::chrono::milliseconds timeout, const Wait& wait) {
  using Clock = std::chrono::steady_clock;
  constexpr std::chrono::milliseconds kLongestPart{500};
  if (!runs_signal_handlers()) {
    return wait(timeout);
  }
  const auto begin = Clock::now();
  while (!work.isCompleted()) {
    auto part = kLongestPart;
    if (timeout != kNoTimeout) {
      const auto waited = std::chrono::duration_cast<std::chrono::milliseconds>(Clock::now() - begin);
      part = std::clamp(timeout - waited, std::chrono::milliseconds(1), kLongestPart);
    }
    const auto end = Clock::now() + part;
    try {
      return wait(part);
    } catch (const std::exception&) {
      const bool is_last = timeout != kNoTimeout && Clock::now() - begin >= timeout;
      if (!work.isCompleted() && (is_last || Clock::now() < end)) {
        throw;
      }
    }
    run_signal_handlers();
  }
  return wait(kNoTimeout);
}

}  // namespace isthmus::torch_backend
