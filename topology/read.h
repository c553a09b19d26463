// Reads machines. This one: hwloc's PCIe tree, processors and devices, what sysfs says of their links and ports, and
// what NVIDIA's driver says of GPUs through NVML. Recorded ones: hwloc's XML (`lstopo machine.xml`), NCCL's
// (NCCL_TOPO_DUMP_FILE, or the file that a cloud hands out), and the matrix that `nvidia-smi topo -m` prints.
#pragma once

#include <map>
#include <string>
#include <vector>

#include "topology/machine.h"

namespace isthmus::topology {

constexpr const char* kExpected =
    "expected hwloc XML (lstopo machine.xml), NCCL topology XML (NCCL_TOPO_DUMP_FILE) or the output of `nvidia-smi "
    "topo -m`";
constexpr const char* kNoFastLinks =
    "the file names no NVLinks, XGMI or Xe links: GPUs are taken to be joined by PCIe only";

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

// The machine that a file describes. Throws TopologyError, whose text names the file, and the line where it can.
Machine read_machine(const std::string& path);

// The machine that the contents of a file describe, whichever format they have. name: of the machine.
Machine parse_machine(const std::string& contents, const std::string& name);

// An element of XML. line: where it begins. Attributes are printable.
struct Element {
  std::string tag;
  std::map<std::string, std::string> attributes;
  int line = 0;
  std::vector<Element> children;

  std::vector<const Element*> all(const std::string& of_tag) const;
  // An attribute; "": it is missing or empty.
  std::string text(const std::string& name) const;
  // A decimal number, or a hexadecimal one with 0x; `absent` where it is missing. Throws TopologyError for what is no
  // number from `least` to `most`.
  long long integer(const std::string& name, long long least, long long most, long long absent) const;
};

// The formats. They leave `name` to their caller.
Machine parse_nccl(const Element& system);
Machine parse_hwloc(const std::string& contents, const Element& topology);
Machine parse_smi(const std::string& contents);

}  // namespace isthmus::topology
