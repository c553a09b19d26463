// Python's side of units: tags, identities and state.
#pragma once

#include <torch/csrc/utils/pybind.h>

#include "torch/backend/backend.h"

namespace isthmus::torch_backend {

using BackendClass = py::class_<BackendIsthmus, c10d::Backend, c10::intrusive_ptr<BackendIsthmus>>;

void bind_units(py::module_& module, BackendClass& backend);

}  // namespace isthmus::torch_backend
