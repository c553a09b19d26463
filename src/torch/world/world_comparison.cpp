#include "torch/world/world_comparison.h"

#include <ATen/core/grad_mode.h>
#include <ATen/ops/zeros.h>

#include <limits>
#include <utility>

#include "auto/probe.h"
#include "communicator/plan/codec_chooser.h"
#include "communicator/plan/policy.h"
#include "torch/backend/tensors.h"
#include "torch/backend/without_gil.h"

namespace isthmus::torch_backend {
namespace {

// The options, for collectives that must stay exact.
isthmus::Options exact_only(isthmus::Options options) {
  options.error_budget = std::numeric_limits<double>::min();
  return options;
}

DataType measured_dtype(at::ScalarType type) {
  return floating_dtype(type).value_or(DataType::kFloat32);  // gathers move any type
}

}  // namespace

bool WorldComparison::world_reduces_faster(Side& side, const Gradient& gradient, const at::Tensor& input) {
  const UnitKey& key = gradient.unit;
  const isthmus::Options& options = group_.options;
  const bool may_be_lossy =
      gradient.why_exact == nullptr && key.dtype != DataType::kFloat64 && is_large(options, key.num_elements);
  const Measurements* measured = measurements(side, input);
  if (measured == nullptr) {
    return false;
  }
  const NodeMap& map = group_.map;
  const UnitFacts facts{key.num_elements, key.dtype, key.collective, map.num_nodes(), map.ranks_per_node(), {}};
  const Choice choice = CodecChooser::choose_path(*measured, facts, may_be_lossy ? options : exact_only(options));
  if (choice.candidate != Candidate::kWorld) {
    return false;
  }
  counters_.count_exact(kWorldFaster);
  const std::lock_guard lock(mutex_);
  UnitStats& unit = units_[key.hash()];
  unit.name = key.name;
  unit.collective = key.collective;
  unit.num_elements = key.num_elements;
  unit.codec = to_string(choice.candidate);
  unit.reason = choice.reason;
  ++unit.calls;
  return true;
}

bool WorldComparison::world_gathers_faster(Side& side, const at::Tensor& output) {
  const Measurements* measured = measurements(side, output);
  const bool is_faster =
      measured != nullptr && isthmus::world_gathers_faster(measured->links, static_cast<int64_t>(output.nbytes()),
                                                           group_.map.num_nodes(), group_.map.ranks_per_node());
  if (is_faster) {
    counters_.count_exact(kWorldGathersFaster);
  }
  return is_faster;
}

std::map<uint64_t, UnitStats> WorldComparison::units() const {
  const std::lock_guard lock(mutex_);
  return units_;
}

void WorldComparison::reset_stats() {
  const std::lock_guard lock(mutex_);
  units_.clear();
}

// Null: they are not asked for, or cannot be taken now. In program order with the collectives; all ranks come alike.
const Measurements* WorldComparison::measurements(Side& side, const at::Tensor& like) {
  if (group_.options.codec != "auto" || !side.abilities().is_compared) {
    return nullptr;
  }
  const DataType dtype = measured_dtype(like.scalar_type());
  {
    const std::lock_guard lock(mutex_);
    const auto found = measurements_.find(dtype);
    if (found != measurements_.end()) {
      return &found->second;
    }
  }
  if (calls_.is_coalescing()) {
    return nullptr;
  }
  const WithoutGil without_gil;
  Measurements measured = measure_tiers(side, dtype);
  if (group_.options.inter_gbit == 0) {
    measure_world(side, dtype, measured.links);
  }
  const std::lock_guard lock(mutex_);
  return &measurements_.insert_or_assign(dtype, measured).first->second;
}

Measurements WorldComparison::measure_tiers(Side& side, DataType dtype) {
  Measurements measured;
  TwoTierCall call;
  call.operation.operation = "measurement of links";
  call.title = "isthmus:measure";
  call.timeout = calls_.timeout_or_default(kNoTimeout);
  call.run = [&measured, dtype](Communicator& communicator, Stream /*stream*/) {
    measured = communicator.chooser().measure(dtype);
    return EventPtr();
  };
  side.submit(std::move(call))->wait();
  return measured;
}

void WorldComparison::measure_world(Side& side, DataType dtype, LinkSpeeds& links) {
  const at::NoGradGuard no_grad;
  const int size = group_.size;
  const auto elements_for_all = [&](int64_t bytes) { return (bytes / element_bytes(dtype) / size + 1) * size; };
  const auto zeros = [&](int64_t num_elements) { return at::zeros({num_elements}, at::dtype(scalar_type(dtype))); };
  const auto run = [&](const std::function<WorkPtr(c10d::Backend&)>& call) { calls_.forward(side, call)->wait(); };
  const auto max_over_ranks = [&](std::vector<double>& values) { calls_.max_over_ranks(side, values); };
  const auto reduce_scatter = [&](int64_t bytes) {
    at::Tensor input = zeros(elements_for_all(bytes));
    at::Tensor output = zeros(input.numel() / size);
    run([&](c10d::Backend& world) { return world._reduce_scatter_base(output, input, {}); });
  };
  const auto all_reduce = [&](int64_t bytes) {
    std::vector<at::Tensor> tensors = {zeros(elements_for_all(bytes))};
    run([&](c10d::Backend& world) { return world.allreduce(tensors, {}); });
  };
  const auto all_gather = [&](int64_t bytes) {
    at::Tensor output = zeros(elements_for_all(bytes));
    at::Tensor input = zeros(output.numel() / size);
    run([&](c10d::Backend& world) { return world._allgather_base(output, input, {}); });
  };
  const ProbeClock clock = steady_clock();
  links.world_reduce = probe_speed(reduce_scatter, max_over_ranks, clock, {});
  links.world_all_reduce = probe_speed(all_reduce, max_over_ranks, clock, {});
  links.world_gather = probe_speed(all_gather, max_over_ranks, clock, {});
}

}  // namespace isthmus::torch_backend
