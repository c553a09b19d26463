// Statistics of a backend.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "isthmus/stats.h"
#include "torch/base/call_counters.h"
#include "torch/base/group.h"
#include "torch/sides/side.h"

namespace isthmus::torch_backend {

// A snapshot for isthmus.stats().
struct BackendStats {
  std::string node_map;
  std::string node_map_source;
  std::string options;
  std::map<std::string, int64_t> calls;           // as they arrived from torch
  isthmus::Stats path;                            // the two-tier path on all devices, with the backend's exact calls
  std::map<std::string, isthmus::Stats> devices;  // the two-tier path on each device: "cpu", "cuda:0"
  double ran_s = 0;                               // see SideStats
  double waited_s = 0;
  std::string one_tier;  // why the group has no two tiers; empty: it has
  std::vector<std::string> notes;
};

// What to do about reductions that stayed exact; empty: nothing.
std::string exact_note(Reason reason, int64_t calls);
// What to do about residuals that were dropped; empty: none was.
std::string spikes_note(int64_t spikes);

// Fills in all but the source of the node map and the options.
BackendStats assemble(const Group& group, const std::vector<Side*>& sides, const CallCounters& counters);

}  // namespace isthmus::torch_backend
