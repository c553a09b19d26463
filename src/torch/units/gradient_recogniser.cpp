#include "torch/units/gradient_recogniser.h"

#include <utility>

#include "communicator/plan/policy.h"
#include "torch/base/tensors.h"

namespace isthmus::torch_backend {
namespace {

UnitKey make_key(std::string name, const ReductionShape& shape) {
  return {.name = std::move(name),
          .num_elements = shape.num_elements,
          .dtype = shape.dtype,
          .collective = shape.collective};
}

// Returns the tag's unit, under `name` if one is given.
Reduction tagged_unit(const UnitTag& tag, const ReductionShape& shape, const std::string& name = "") {
  UnitKey key = make_key(name.empty() ? tag.name : name, shape);
  key.layout = tag.sections != nullptr ? tag.sections->hash() : tag.layout;
  key.sections = tag.sections;
  key.owner = tag.owner;
  return {.unit = std::move(key), .why_exact = tag.why_exact};
}

// Returns "fsdp1:float32:4096".
std::string made_up_name(const char* kind, const ReductionShape& shape) {
  return std::string(kind) + ':' + to_string(shape.dtype) + ':' + std::to_string(shape.num_elements);
}

// Returns the factor of a sum over `size` ranks; nothing if `op` is no sum, or if the factor is in GPU memory, where
// reading it would block.
std::optional<double> sum_scale(const c10d::ReduceOp& op, int size) {
  if (op.op_ == c10d::ReduceOp::SUM) {
    return 1.0;
  }
  if (op.op_ == c10d::ReduceOp::AVG) {
    return 1.0 / size;
  }
  if (const auto* factor = premultiplier(op)) {
    const at::Tensor& tensor = factor->tensor_factor;
    if (!tensor.defined()) {
      return factor->double_factor;
    }
    if (tensor.is_cpu()) {
      return tensor.item<double>();
    }
  }
  return std::nullopt;
}

// If the reduction's elements are not in the known order, the sections do not apply: the reduction is one section.
void forget_unfit_sections(UnitKey& key, int num_ranks) {
  const int num_rows = key.collective == Collective::kReduceScatter ? num_ranks : 1;
  if (key.sections != nullptr && num_rows * key.sections->row_elements() != key.num_elements) {
    key.sections = nullptr;
  }
}

}  // namespace

GradientRecogniser::GradientRecogniser(const Group& group, CallCounters& counters, bool covers_job)
    : group_(group), counters_(counters), covers_job_(covers_job) {}

std::optional<Reduction> GradientRecogniser::recognise(const at::Tensor& output, const at::Tensor& input,
                                                       Collective collective, const c10d::ReduceOp& op) {
  if (!group_.two_tier()) {
    counters_.count_exact(Reason::kOneTier);
    return std::nullopt;
  }
  const auto dtype = floating_dtype(input.scalar_type());
  const auto scale = sum_scale(op, group_.size);
  const bool reducible = dtype && scale && output.device() == input.device() && input.numel() > 0 &&
                         input.layout() == at::kStrided && output.scalar_type() == input.scalar_type();
  std::optional<Reduction> gradient;
  Reason not_fsdps = Reason::kNotFsdps;
  if (reducible) {
    const ReductionShape shape{input.numel(), *dtype, collective};
    const PushedUnit* told = told_unit();
    gradient = told != nullptr ? tagged_unit(told->tag, shape) : identify(output, input, shape, not_fsdps);
  }
  if (!gradient) {
    counters_.count_exact(why_not_recognised(output, input, reducible, not_fsdps));
    return std::nullopt;
  }
  gradient->scale = *scale;
  forget_unfit_sections(gradient->unit, group_.size);
  return gradient;
}

int ParameterNumbers::number(const WeakParameter& parameter, const ReductionShape& shape) {
  const auto key = std::pair(shape, static_cast<const c10::TensorImpl*>(parameter._unsafe_get_target()));
  const auto found = by_parameter_.find(key);
  if (found != by_parameter_.end()) {
    return found->second.number;
  }
  std::erase_if(by_parameter_, [](const auto& entry) { return entry.second.parameter.expired(); });
  const int number = next_[shape]++;
  by_parameter_.emplace(key, Numbered{parameter, number});
  return number;
}

std::optional<Reduction> GradientRecogniser::identify(const at::Tensor& output, const at::Tensor& input,
                                                      const ReductionShape& shape, Reason& not_fsdps) {
  const bool may_be_fsdps = in_fsdp_reduction() && fsdp_caller;
  std::optional<FsdpCaller> fsdp = may_be_fsdps ? fsdp_caller(output, input) : std::nullopt;
  if (fsdp && fsdp->why_not) {
    not_fsdps = *fsdp->why_not;
    fsdp.reset();
  }
  const std::optional<WeakParameter> parameter = parameter_behind_node();
  const std::lock_guard lock(mutex_);
  if (fsdp) {
    return fsdp->flat_parameter ? flat_unit(*fsdp, shape) : tagged_unit(fsdp->tag, shape);
  }
  if (PushedUnit* pushed = current_unit()) {
    // If a user reduces several tensors of one shape under one name, their order in the block tells them apart.
    const int number = pushed->num_reductions[{this, shape}]++;
    return tagged_unit(pushed->tag, shape, with_ordinal(pushed->tag.name, number));
  }
  if (in_fsdp_reduction()) {
    return std::nullopt;
  }
  if (parameter) {
    if (const auto tag = parameter_tag(*parameter)) {
      return tagged_unit(*tag, shape);
    }
  }
  if (group_.options.gradients != GradientSource::kBackward || current_graph_task() < 0) {
    return std::nullopt;
  }
  if (parameter) {
    const int number = parameters_.number(*parameter, shape);
    return Reduction{make_key(with_ordinal(made_up_name("parameter", shape), number), shape)};
  }
  return unknown_unit(shape);
}

// The flat parameter alone identifies an unprepared unit of FSDP1, even with reentrant checkpointing, several models,
// or skipped units.
Reduction GradientRecogniser::flat_unit(const FsdpCaller& caller, const ReductionShape& shape) {
  if (const auto tag = parameter_tag(*caller.flat_parameter)) {
    return tagged_unit(*tag, shape);
  }
  const int number = flat_parameters_.number(*caller.flat_parameter, shape);
  return tagged_unit(caller.tag, shape, with_ordinal(made_up_name("fsdp1", shape), number));
}

// This is a bucket or a compiled graph's reduction: a gradient because the option says so, with unknown parameters. So
// it has no residual, and its order among equal reductions of the backward pass names it.
Reduction GradientRecogniser::unknown_unit(const ReductionShape& shape) {
  const int graph_task = current_graph_task();
  if (std::exchange(graph_task_, graph_task) != graph_task) {
    in_graph_task_.clear();
  }
  const int number = in_graph_task_[shape]++;
  Reduction reduction{make_key(with_ordinal(made_up_name(to_string(shape.collective), shape), number), shape)};
  reduction.unit.may_keep_residual = false;
  if (!covers_job_) {
    reduction.why_exact = Reason::kMayHoldCopies;
  }
  return reduction;
}

Reason GradientRecogniser::why_not_recognised(const at::Tensor& output, const at::Tensor& input, bool reducible,
                                              Reason not_fsdps) const {
  if (current_unit() == nullptr && !in_fsdp_reduction() && current_graph_task() < 0) {
    return Reason::kNotRecognised;
  }
  if (output.device() != input.device()) {
    return Reason::kOtherDevice;
  }
  if (input.numel() == 0) {
    return Reason::kEmpty;
  }
  if (!reducible) {
    return Reason::kNoSum;
  }
  if (!is_large(group_.options, input.numel())) {
    return Reason::kTooSmall;
  }
  return in_fsdp_reduction() ? not_fsdps : Reason::kNotLabelled;
}

}  // namespace isthmus::torch_backend
