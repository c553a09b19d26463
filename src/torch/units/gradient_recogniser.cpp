#include "torch/units/gradient_recogniser.h"

#include <algorithm>
#include <utility>

#include "communicator/plan/policy.h"
#include "torch/base/reduce_ops.h"
#include "torch/base/tensors.h"

namespace isthmus::torch_backend {
namespace {

bool gradients_in_backward(const std::string& mode) { return mode == "backward"; }

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

// Returns the calling thread's context, without Python's part.
ReductionCall current_call() {
  ReductionCall call;
  call.pushed = current_unit();
  call.in_fsdp_reduction = in_fsdp_reduction();
  call.parameter = parameter_behind_node();
  call.graph_task = current_graph_task();
  return call;
}

// Adds Python's answer about a call that may be FSDP's.
void ask_python(ReductionCall& call, const at::Tensor& output, const at::Tensor& input) {
  const bool is_told = call.pushed != nullptr && !call.pushed->by_user;
  if (call.in_fsdp_reduction && !is_told && fsdp_caller) {
    call.fsdp = fsdp_caller(output, input);
  }
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
    : group_(group), counters_(counters), covers_job_(covers_job), gradients_(group.options.gradients) {}

std::optional<Reduction> GradientRecogniser::recognise(const at::Tensor& output, const at::Tensor& input,
                                                       Collective collective, const c10d::ReduceOp& op) {
  if (!group_.two_tier()) {
    counters_.count_exact("the group is not on several nodes of one size");
    return std::nullopt;
  }
  const auto dtype = floating_dtype(input.scalar_type());
  const auto scale = sum_scale(op, group_.size);
  const bool reducible = dtype && scale && output.device() == input.device() && input.numel() > 0 &&
                         input.layout() == at::kStrided && output.scalar_type() == input.scalar_type();
  ReductionCall call = current_call();
  if (reducible) {
    ask_python(call, output, input);
    std::unique_lock lock(mutex_);
    std::optional<Reduction> gradient = identify(call, {input.numel(), *dtype, collective});
    lock.unlock();
    if (gradient) {
      gradient->scale = *scale;
      forget_unfit_sections(gradient->unit, group_.size);
      return gradient;
    }
  }
  counters_.count_exact(why_not_recognised(call, output, input, reducible));
  return std::nullopt;
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

std::optional<Reduction> GradientRecogniser::identify(const ReductionCall& call, const ReductionShape& shape) {
  if (call.fsdp) {
    return fsdp_unit(*call.fsdp, shape);
  }
  if (call.pushed != nullptr) {
    return pushed_unit(*call.pushed, shape);
  }
  if (call.in_fsdp_reduction) {
    return std::nullopt;
  }
  if (call.parameter) {
    if (const auto tag = parameter_tag(*call.parameter)) {
      return tagged_unit(*tag, shape);
    }
  }
  if (!gradients_in_backward(gradients_) || call.graph_task < 0) {
    return std::nullopt;
  }
  return call.parameter ? parameter_unit(*call.parameter, shape) : unknown_unit(call, shape);
}

Reduction GradientRecogniser::fsdp_unit(const FsdpCaller& caller, const ReductionShape& shape) {
  if (caller.flat_parameter) {
    return flat_unit(caller, shape);
  }
  return tagged_unit(caller.tag, shape, caller.is_label ? numbered(caller.tag.name, caller.tag.owner) : "");
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

std::string GradientRecogniser::numbered(const std::string& label, uint64_t owner) {
  std::map<uint64_t, int>& owners = owners_[label];
  return with_ordinal(label, owners.try_emplace(owner, static_cast<int>(owners.size())).first->second);
}

// If a user reduces several tensors of one shape under one name, their order in the block tells them apart.
Reduction GradientRecogniser::pushed_unit(PushedUnit& pushed, const ReductionShape& shape) const {
  Reduction reduction = tagged_unit(pushed.tag, shape);
  if (pushed.by_user) {
    std::string& name = reduction.unit.name;
    name = with_ordinal(std::move(name), pushed.num_reductions[{this, shape}]++);
  }
  return reduction;
}

Reduction GradientRecogniser::parameter_unit(const WeakParameter& parameter, const ReductionShape& shape) {
  const int number = parameters_.number(parameter, shape);
  return {make_key(with_ordinal(made_up_name("parameter", shape), number), shape)};
}

// This is a bucket or a compiled graph's reduction: a gradient because the option says so, with unknown parameters. So
// it has no residual, and its order among equal reductions of the backward pass names it.
Reduction GradientRecogniser::unknown_unit(const ReductionCall& call, const ReductionShape& shape) {
  if (call.graph_task != graph_task_) {
    graph_task_ = call.graph_task;
    in_graph_task_.clear();
  }
  const int number = in_graph_task_[shape]++;
  Reduction reduction;
  reduction.unit = make_key(with_ordinal(made_up_name(to_string(shape.collective), shape), number), shape);
  reduction.unit.may_keep_residual = false;
  reduction.why_exact = covers_job_ ? nullptr : kMayHoldCopies;
  return reduction;
}

std::string GradientRecogniser::name_of(uint64_t owner, const std::string& label) {
  const std::lock_guard lock(mutex_);
  return numbered(label, owner);
}

const char* GradientRecogniser::why_not_recognised(const ReductionCall& call, const at::Tensor& output,
                                                   const at::Tensor& input, bool reducible) const {
  if (call.pushed == nullptr && !call.in_fsdp_reduction && call.graph_task < 0) {
    return "not recognised as a gradient";
  }
  if (output.device() != input.device()) {
    return "input and output on different devices";
  }
  if (input.numel() == 0) {
    return "empty";
  }
  if (!reducible) {
    return "not a sum of floating-point numbers";
  }
  if (!is_large(group_.options, input.numel())) {
    return kTooSmall;
  }
  return call.in_fsdp_reduction ? kNotFsdps : kUnlabelled;
}

void GradientRecogniser::set_gradients(const std::string& mode) {
  isthmus::Options options = group_.options;
  for (const OptionField& field : option_fields()) {
    if (field.name == std::string("gradients")) {
      field.set(options, mode);
    }
  }
  const std::lock_guard lock(mutex_);
  gradients_ = options.gradients;
}

std::string GradientRecogniser::gradients() const {
  const std::lock_guard lock(mutex_);
  return gradients_;
}

}  // namespace isthmus::torch_backend
