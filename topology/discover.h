// The machine that this process runs on: hwloc's PCIe tree, processors and devices, what sysfs says of their links and
// ports, and what NVML says of GPUs. Whatever is missing is left open or noted.
#pragma once

#include <string>

#include "topology/machine.h"
#include "topology/nvml.h"

namespace isthmus::topology {

// sys: where sysfs is. Where HWLOC_XMLFILE or HWLOC_SYNTHETIC make hwloc describe another machine, neither sysfs nor
// NVML counts, unless HWLOC_THISSYSTEM=1. Throws TopologyError for more devices than a machine may have.
Machine discover(const NvmlFacts& nvml, const std::string& sys = "/sys");

// "2.9.0".
std::string hwloc_version();

}  // namespace isthmus::topology
