// Simulated nodes for Python: all ranks of a group in one process.
#pragma once

#include <torch/csrc/utils/pybind.h>

#include "isthmus/stats.h"

namespace isthmus::torch_backend {

// Adds class SimulatedNodes to the module, which has Options and the errors already.
void bind_simulated_nodes(py::module_& module);

// What a device did, or all of them, as plain values. In module.cpp.
py::dict to_dict(const isthmus::Stats& path);

}  // namespace isthmus::torch_backend
