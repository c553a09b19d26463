// GPUs as NVIDIA's driver reports them through NVML, which is loaded when it is asked, and only then. Needs no hwloc.
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

// What a driver does not know is left open. Called from any thread.
NvmlFacts read_nvml(const char* library = "libnvidia-ml.so.1");

}  // namespace isthmus::topology
