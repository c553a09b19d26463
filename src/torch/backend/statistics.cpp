// Statistics of BackendIsthmus.
#include <algorithm>
#include <utility>

#include "torch/backend/backend.h"
#include "torch/base/interpreter.h"

namespace isthmus::torch_backend {
namespace {

// Every device counts the same steps, so skipped_steps takes the maximum.
void add(const Stats& device, Stats& total) {
  for (size_t i = 0; i < total.collectives.size(); ++i) {
    total.collectives[i] += device.collectives[i];
  }
  total.codec += device.codec;
  total.weights += device.weights;
  total.peer_waits += device.peer_waits;
  total.compressed_calls += device.compressed_calls;
  add_counts(device.exact_calls, total.exact_calls);
  total.skipped_steps = std::max(total.skipped_steps, device.skipped_steps);
  total.num_units += device.num_units;
  total.residual_bytes += device.residual_bytes;
  total.dropped_residuals += device.dropped_residuals;
  total.scratch_bytes += device.scratch_bytes;
  total.units.insert(device.units.begin(), device.units.end());
}

}  // namespace

BackendStats BackendIsthmus::stats() {
  const WithoutGil without_gil;
  group_.process.require_this();
  BackendStats stats;
  stats.node_map = group_.map.to_string();
  stats.node_map_source = node_map_source_;
  stats.options = group_.options.to_string();
  const CallCounters::Counts counts = counters_.counts();
  stats.calls = counts.calls;
  stats.world = counts.world;
  for (Side* side : sides_) {
    if (auto device = side->stats()) {
      add(device->path, stats.path);
      stats.ran_s += device->ran_s;
      stats.waited_s += device->waited_s;
      stats.devices[device->device] = std::move(device->path);
    }
  }
  add_counts(counts.exact_calls, stats.path.exact_calls);
  if (!group_.two_tier()) {
    stats.one_tier =
        "no two-tier path: it needs several nodes with equally many ranks, and this group has " + stats.node_map;
  }
  return stats;
}

void BackendIsthmus::reset_stats() {
  group_.process.require_this();
  counters_.reset();
  for (Side* side : sides_) {
    side->reset_stats();
  }
}

}  // namespace isthmus::torch_backend
