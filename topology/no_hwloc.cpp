// A build without hwloc or Expat: what it says of machines.
#include "topology/read.h"

namespace isthmus::topology {
namespace {

constexpr const char* kMissing =
    "isthmus was built without hwloc or Expat, which describe machines: install libhwloc-dev and libexpat1-dev "
    "(Debian) or hwloc-devel and expat-devel (Fedora), and build again";

}  // namespace

Machine read_machine(const std::string&) { throw TopologyError(kMissing); }
Machine discover(const NvmlFacts&, const std::string&) { throw TopologyError(kMissing); }
std::string hwloc_version() { return ""; }

}  // namespace isthmus::topology
