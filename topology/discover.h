// The machine that this process runs on: hwloc's PCIe tree, processors and devices, what sysfs says of their links and
// ports, and what NVIDIA's driver says of GPUs through NVML. Whatever is missing is left open or noted.
#pragma once

#include <string>
#include <vector>

#include "topology/machine.h"

namespace isthmus::topology {

// gpus: with nvidia-smi's numbers, in its order, and their NVLinks. missing: why there is nothing, which is normal on a
// machine without the library, the driver or a GPU; "": NVML answered.
struct NvmlFacts {
  std::vector<Gpu> gpus;
  std::string driver;
  std::string missing;
  std::vector<std::string> notes;
};

// NVML is loaded when it is asked, and only then. What a driver does not know is left open. Called from any thread.
// Needs no hwloc.
NvmlFacts read_nvml(const char* library = "libnvidia-ml.so.1");

// sys: where sysfs is. Where HWLOC_XMLFILE or HWLOC_SYNTHETIC make hwloc describe another machine, neither sysfs nor
// NVML counts, unless HWLOC_THISSYSTEM=1. Throws TopologyError for more devices than a machine may have.
Machine discover(const NvmlFacts& nvml, const std::string& sys = "/sys");

// "2.9.0".
std::string hwloc_version();

}  // namespace isthmus::topology
