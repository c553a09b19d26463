// Statistics of BackendIsthmus.
#include <algorithm>
#include <utility>

#include "isthmus/error.h"
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

std::vector<std::string> notes_on(const BackendStats& stats) {
  std::vector<std::string> notes;
  if (!stats.devices.contains("cpu")) {
    notes.emplace_back("shut down");
  }
  for (const auto& [reason, calls] : stats.path.exact_calls) {
    notes.push_back(exact_note(reason, calls));
  }
  notes.push_back(spikes_note(stats.path.codec.spikes));
  std::erase(notes, "");
  return notes;
}

}  // namespace

std::string exact_note(Reason reason, int64_t calls) {
  static const std::map<Reason, const char*> texts = {
      {Reason::kNotLabelled,
       "in backward passes, because nothing says that they are gradients: call isthmus.prepare(model), or set "
       "gradients=\"backward\" if all reductions in backward passes of this group are (compiled graphs need that)"},
      {Reason::kMixedCopies,
       "of units in which tensor parallelism splits some parameters and copies others: give those that it copies "
       "(norms, biases) a unit of their own, fully_shard([block.norm1, block.norm2])"},
      {Reason::kUnknownCopies,
       "of units over a mesh that leaves ranks of the job out, as one of DeviceMesh.from_group does: these may reduce "
       "copies of the same parameters, as under tensor parallelism, and must get the same bits. Cut the mesh out of "
       "one "
       "over all ranks, init_device_mesh(...)[\"dp\"]"},
      {Reason::kWhoseResidual,
       "in backward passes, because nothing says whose gradients they are, and another's residual must not be added to "
       "them: call isthmus.prepare(model), or take a codec that keeps none (quant)"},
      {Reason::kMayHoldCopies,
       "in backward passes, because nothing says whose gradients they are: ranks outside of this group may reduce "
       "copies of the same parameters, as under tensor parallelism, and must get the same bits. Call "
       "isthmus.prepare(model)"},
      {Reason::kOwnReduceScatter,
       "that a reduce-scatter of the program's own made of other tensors than FSDP2's (set_custom_reduce_scatter): "
       "name "
       "them in it, with isthmus.unit(\"name\"), or leave it out"},
      {Reason::kNotFsdps,
       "inside of FSDP's reduction that hooks of yours made (an optimizer in the backward pass), which is as it should "
       "be. If there are no such hooks, do not compile the backward pass, or report the version of torch"}};
  const auto found = texts.find(reason);
  return found == texts.end() ? "" : detail::concatenate("exact reductions: ", calls, ' ', found->second);
}

std::string spikes_note(int64_t spikes) {
  return spikes == 0 ? ""
                     : detail::concatenate("residuals dropped: ", spikes,
                                           " times, as gradients were far larger than before. If the program throws "
                                           "such steps away, let it call isthmus.begin_step(model) and "
                                           "isthmus.skip_step(model)");
}

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
    return stats;
  }
  stats.notes = notes_on(stats);
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
