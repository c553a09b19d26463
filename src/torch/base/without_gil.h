// Releases Python's global lock in the backend.
#pragma once

#include <pybind11/pybind11.h>

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

}  // namespace isthmus::torch_backend
