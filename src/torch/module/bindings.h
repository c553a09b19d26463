// What isthmus._C consists of.
#pragma once

#include <torch/csrc/utils/pybind.h>

#include "torch/backend/backend.h"

namespace isthmus::torch_backend {

using BackendClass = py::class_<BackendIsthmus, c10d::Backend, c10::intrusive_ptr<BackendIsthmus>>;

// Units: tags, identities and state.
void bind_units(py::module_& module, BackendClass& backend);
// Weight differences without a group: what isthmus.weights is made of.
void bind_weights(py::module_& module);

}  // namespace isthmus::torch_backend
