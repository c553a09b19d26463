// Reads recorded machines: hwloc's XML (`lstopo machine.xml`), NCCL's (NCCL_TOPO_DUMP_FILE, or the file that a cloud
// hands out), and the matrix that `nvidia-smi topo -m` prints.
#pragma once

#include <string>

#include "topology/machine.h"
#include "topology/xml.h"

namespace isthmus::topology {

constexpr const char* kExpected =
    "expected hwloc XML (lstopo machine.xml), NCCL topology XML (NCCL_TOPO_DUMP_FILE) or the output of `nvidia-smi "
    "topo -m`";

// The machine that a file describes. Throws TopologyError, whose text names the file, and the line where it can.
Machine read_machine(const std::string& path);

// The machine that the contents of a file describe, whichever format they have. name: of the machine.
Machine parse_machine(const std::string& contents, const std::string& name);

// The formats. They leave `name` to their caller.
Machine parse_nccl(const Element& system);
Machine parse_hwloc(const std::string& contents, const Element& topology);
Machine parse_smi(const std::string& contents);

}  // namespace isthmus::topology
