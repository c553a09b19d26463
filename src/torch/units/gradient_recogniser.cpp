#include "torch/units/gradient_recogniser.h"

#include <utility>

#include "communicator/plan/policy.h"
#include "torch/backend/reduce_ops.h"
#include "torch/backend/tensors.h"
#include "torch/units/unmatched_patterns.h"

namespace isthmus::torch_backend {
namespace {

bool gradients_in_backward(const std::string& mode) { return mode == "backward"; }

FindFsdpCaller& fsdp_caller() {
  static auto* find = new FindFsdpCaller;  // never destroyed: it holds a Python object
  return *find;
}

// Adds Python's answer about a call that may be FSDP's.
void ask_python(ReductionCall& call, const at::Tensor& output, const at::Tensor& input) {
  const bool is_told = call.pushed != nullptr && !call.pushed->by_user;
  if (call.in_fsdp_reduction && !is_told && fsdp_caller()) {
    call.fsdp = fsdp_caller()(output, input);
  }
}

}  // namespace

void set_fsdp_caller(FindFsdpCaller find) { fsdp_caller() = std::move(find); }

GradientRecogniser::GradientRecogniser(const Group& group, CallCounters& counters, bool covers_job)
    : group_(group),
      counters_(counters),
      units_(covers_job, gradients_in_backward(group.options.gradients)),
      gradients_(group.options.gradients) {}

std::optional<Gradient> GradientRecogniser::recognise(const at::Tensor& output, const at::Tensor& input,
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
    if (auto unit = identify(call, {input.numel(), *dtype, collective})) {
      look_for_unmatched_patterns(group_.options.units, unit->key);
      return Gradient{std::move(unit->key), *scale, unit->why_exact};
    }
  }
  counters_.count_exact(why_not_recognised(call, output, input, reducible));
  return std::nullopt;
}

std::optional<IdentifiedUnit> GradientRecogniser::identify(const ReductionCall& call, const ReductionShape& shape) {
  const std::lock_guard lock(mutex_);
  return units_.identify(call, shape);
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
  units_.set_gradients_in_backward(gradients_in_backward(gradients_));
}

std::string GradientRecogniser::gradients() const {
  const std::lock_guard lock(mutex_);
  return gradients_;
}

}  // namespace isthmus::torch_backend
