// Reads recorded machines: hwloc's XML (`lstopo machine.xml`), NCCL's (NCCL_TOPO_DUMP_FILE, or the file that a cloud
// hands out), and the matrix that `nvidia-smi topo -m` prints.
#pragma once

#include <map>
#include <string>
#include <vector>

#include "topology/machine.h"

namespace isthmus::topology {

constexpr const char* kExpected =
    "expected hwloc XML (lstopo machine.xml), NCCL topology XML (NCCL_TOPO_DUMP_FILE) or the output of `nvidia-smi "
    "topo -m`";

// The machine that a file describes. Throws TopologyError, whose text names the file, and the line where it can.
Machine read_machine(const std::string& path);

// The machine that the contents of a file describe, whichever format they have. name: of the machine.
Machine parse_machine(const std::string& contents, const std::string& name);

// An element of XML. line: where it begins.
struct Element {
  std::string tag;
  std::map<std::string, std::string> attributes;
  int line = 0;
  std::vector<Element> children;

  std::vector<const Element*> all(const std::string& of_tag) const;
  // An attribute, printable; "": it is missing or empty.
  std::string text(const std::string& name) const;
  // A decimal number, or a hexadecimal one with 0x; `absent` where it is missing. Throws TopologyError for what is no
  // number from `least` to `most`.
  long long integer(const std::string& name, long long least, long long most, long long absent) const;
};

// The root. Throws TopologyError, with the line, for what is not well-formed, declares entities, or nests too deep. It
// borrows nothing.
Element parse_xml(const std::string& text);

// The formats. They leave `name` to their caller.
Machine parse_nccl(const Element& system);
Machine parse_hwloc(const std::string& contents, const Element& topology);
Machine parse_smi(const std::string& contents);

}  // namespace isthmus::topology
