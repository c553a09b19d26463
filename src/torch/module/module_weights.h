// Weight differences without a group: what isthmus.weights is made of.
#pragma once

#include <torch/csrc/utils/pybind.h>

namespace isthmus::torch_backend {

void bind_weights(py::module_& module);

}  // namespace isthmus::torch_backend
