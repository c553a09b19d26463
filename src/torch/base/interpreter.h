// Python's global lock and handlers of its signals, in the backend.
#pragma once

#include <pybind11/pybind11.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <optional>

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

}  // namespace isthmus::torch_backend
