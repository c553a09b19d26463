// Codec auto: which collectives are left to the world backend because it is faster. See docs/auto.md.
#include <limits>
#include <tuple>
#include <utility>

#include "auto/probe.h"
#include "torch/backend/dtypes.h"
#include "torch/backend/internal.h"

namespace isthmus::torch_backend {
namespace {

// What the options say, for what must stay exact.
isthmus::Options exact_only(isthmus::Options options) {
  options.error_budget = std::numeric_limits<double>::min();
  return options;
}

DataType measured_dtype(at::ScalarType type) {
  return floating_dtype(type).value_or(DataType::kFloat32);  // gathers move any type
}

}  // namespace

bool BackendIsthmus::world_reduces_faster(const Gradient& gradient, const at::Tensor& input) {
  const UnitKey& key = gradient.unit;
  const bool may_be_lossy =
      gradient.why_exact == nullptr && key.dtype != DataType::kFloat64 && key.num_elements >= values_.min_elements;
  const Measurements* measured = measurements(input);
  if (measured == nullptr) {
    return false;
  }
  const UnitFacts facts{key.num_elements, key.dtype, key.collective, map_.num_nodes(), map_.ranks_per_node(), {}};
  const Choice choice = choose(*measured, facts, may_be_lossy ? values_ : exact_only(values_));
  if (choice.candidate != Candidate::kWorld) {
    return false;
  }
  std::lock_guard lock(mutex_);
  ++exact_calls_[kWorldFaster];
  UnitStats& unit = world_units_[key.hash()];
  unit.name = key.name;
  unit.collective = key.collective;
  unit.num_elements = key.num_elements;
  unit.codec = to_string(choice.candidate);
  unit.reason = choice.reason;
  ++unit.calls;
  return true;
}

bool BackendIsthmus::world_gathers_faster(const at::Tensor& output) {
  const Measurements* measured = measurements(output);
  const bool is_faster =
      measured != nullptr && isthmus::world_gathers_faster(measured->links, static_cast<int64_t>(output.nbytes()),
                                                           map_.num_nodes(), map_.ranks_per_node());
  if (is_faster) {
    count_exact(kWorldGathersFaster);
  }
  return is_faster;
}

// Null: they are not asked for, or cannot be taken now. In program order with the collectives; all ranks come alike.
const Measurements* BackendIsthmus::measurements(const at::Tensor& like) {
  if (values_.codec != "auto" || like.is_cuda()) {
    return nullptr;
  }
  const DataType dtype = measured_dtype(like.scalar_type());
  {
    std::lock_guard lock(mutex_);
    const auto found = measurements_.find(dtype);
    if (found != measurements_.end()) {
      return &found->second;
    }
    if (coalescing_) {
      return nullptr;
    }
  }
  const WithoutGil without_gil;
  Measurements measured = measure_tiers(dtype);
  if (values_.inter_gbit == 0) {
    measure_world(dtype, measured.links);
  }
  std::lock_guard lock(mutex_);
  return &measurements_.insert_or_assign(dtype, measured).first->second;
}

Measurements BackendIsthmus::measure_tiers(DataType dtype) {
  Measurements measured;
  Job job;
  job.operation.operation = "measurement of links";
  job.timeout = timeout_or_default(kNoTimeout);
  job.work = c10::make_intrusive<WorkerWork>(getRank(), c10d::OpType::UNKNOWN, "isthmus:measure",
                                             std::vector<at::Tensor>{}, std::vector<at::Tensor>{});
  job.run = [&measured, dtype](Communicator& communicator) { measured = communicator.measure(dtype); };
  queue(std::move(job))->wait();
  return measured;
}

void BackendIsthmus::measure_world(DataType dtype, LinkSpeeds& links) {
  const at::NoGradGuard no_grad;
  const auto elements_for_all = [&](int64_t bytes) {
    return (bytes / element_bytes(dtype) / getSize() + 1) * getSize();
  };
  const auto zeros = [&](int64_t num_elements) { return at::zeros({num_elements}, at::dtype(scalar_type(dtype))); };
  const auto run = [this](const std::function<WorkPtr(c10d::Backend&)>& call) { forward(false, call)->wait(); };
  const auto max_over_ranks = [&](std::vector<double>& values) {
    std::vector<at::Tensor> tensor = {
        at::from_blob(values.data(), {static_cast<int64_t>(values.size())}, at::dtype(at::kDouble))};
    c10d::AllreduceOptions options;
    options.reduceOp = c10d::ReduceOp::MAX;
    run([&](c10d::Backend& world) { return world.allreduce(tensor, options); });
  };
  const auto reduce_scatter = [&](int64_t bytes) {
    at::Tensor input = zeros(elements_for_all(bytes));
    at::Tensor output = zeros(input.numel() / getSize());
    run([&](c10d::Backend& world) { return world._reduce_scatter_base(output, input, {}); });
  };
  const auto all_reduce = [&](int64_t bytes) {
    std::vector<at::Tensor> tensors = {zeros(elements_for_all(bytes))};
    run([&](c10d::Backend& world) { return world.allreduce(tensors, {}); });
  };
  const auto all_gather = [&](int64_t bytes) {
    at::Tensor output = zeros(elements_for_all(bytes));
    at::Tensor input = zeros(output.numel() / getSize());
    run([&](c10d::Backend& world) { return world._allgather_base(output, input, {}); });
  };
  const ProbeClock clock = steady_clock();
  links.world_reduce = probe_speed(reduce_scatter, max_over_ranks, clock, {});
  links.world_all_reduce = probe_speed(all_reduce, max_over_ranks, clock, {});
  links.world_gather = probe_speed(all_gather, max_over_ranks, clock, {});
}

}  // namespace isthmus::torch_backend
