// What takes the place of hwloc.cpp in a build without hwloc.
#include "topology/discover.h"
#include "topology/read.h"

namespace isthmus::topology {
namespace {

constexpr const char* kMissing =
    "isthmus was built without hwloc, which describes machines: install libhwloc-dev (Debian) or hwloc-devel (Fedora), "
    "and build again";

}  // namespace

Machine parse_hwloc(const std::string&, const Element&) { throw TopologyError(kMissing); }
Machine discover(const NvmlFacts&, const std::string&) { throw TopologyError(kMissing); }
std::string hwloc_version() { return ""; }

}  // namespace isthmus::topology
