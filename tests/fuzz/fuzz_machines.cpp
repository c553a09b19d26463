// Fuzzes the readers of machine files: an input is a machine or a TopologyError, never anything else. hwloc's own
// reader is part of what is tried; branches are not counted in it.
#include <cstdlib>
#include <string>

#include "topology/read.h"

namespace {

// Ends the process where a machine does not hold together.
void check(const isthmus::topology::Machine& machine) {
  const int size = machine.num_devices();
  bool holds = machine.links.size() == static_cast<size_t>(size) * size;
  for (int a = 0; a < size && holds; ++a) {
    for (int b = 0; b < size; ++b) {
      const isthmus::topology::Link& link = machine.link(a, b);
      holds = holds && link.kind == machine.link(b, a).kind && (link.kind == "X") == (a == b) &&
              link.speed_gbit_s.value_or(1) > 0;
    }
  }
  for (int device = 0; device < size && holds; ++device) {
    const isthmus::topology::Path path = machine.path(device);
    holds = path.empty() || path.front()->above == -1;
  }
  isthmus::topology::find_rails(machine);
  if (!holds) {
    std::abort();
  }
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  try {
    check(isthmus::topology::parse_machine(std::string(data, data + size), "fuzzed"));
  } catch (const isthmus::topology::TopologyError& error) {
    if (error.line < 0 || *error.what() == '\0') {
      std::abort();
    }
  }
  return 0;
}
