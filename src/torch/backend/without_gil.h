// Python's global lock, as far as the backend meets it.
#pragma once

#include <pybind11/pybind11.h>

#include <optional>

namespace isthmus::torch_backend {

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

}  // namespace isthmus::torch_backend
