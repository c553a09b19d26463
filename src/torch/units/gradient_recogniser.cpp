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

std::function<void()>& third_step_function() {
  static auto* function = new std::function<void()>;  // never destroyed: it holds a Python object
  return *function;
}

// Adds Python's answer about a call that may be FSDP's.
void ask_python(ReductionCall& call, const at::Tensor& output, const at::Tensor& input) {
  const bool is_told = call.pushed != nullptr && !call.pushed->by_user;
  if (call.in_fsdp_reduction && !is_told && fsdp_caller()) {
    call.fsdp = fsdp_caller()(output, input);
  }
}

// Of another order of elements than is known, a reduction is a unit by itself.
void forget_unfit_sections(UnitKey& key, int num_ranks) {
  const int num_rows = key.collective == Collective::kReduceScatter ? num_ranks : 1;
  if (key.sections != nullptr && num_rows * key.sections->row_elements() != key.num_elements) {
    key.sections = nullptr;
  }
}

}  // namespace

void set_fsdp_caller(FindFsdpCaller find) { fsdp_caller() = std::move(find); }

void set_third_step_function(std::function<void()> function) { third_step_function() = std::move(function); }

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
  if (third_step_begins() && third_step_function()) {
    third_step_function()();
  }
  const auto dtype = floating_dtype(input.scalar_type());
  const auto scale = sum_scale(op, group_.size);
  const bool reducible = dtype && scale && output.device() == input.device() && input.numel() > 0 &&
                         input.layout() == at::kStrided && output.scalar_type() == input.scalar_type();
  ReductionCall call = current_call();
  if (reducible) {
    ask_python(call, output, input);
    if (auto unit = identify(call, {input.numel(), *dtype, collective})) {
      forget_unfit_sections(unit->key, group_.size);
      look_for_unmatched_patterns(group_.options.units, unit->key);
      return Gradient{std::move(unit->key), *scale, unit->why_exact};
    }
  }
  counters_.count_exact(why_not_recognised(call, output, input, reducible));
  return std::nullopt;
}

bool GradientRecogniser::third_step_begins() {
  if (group_.options.codec == "none" && group_.options.weights != "delta") {
    return false;
  }
  const uint64_t steps = num_optimizer_steps();
  const std::lock_guard lock(mutex_);
  steps_before_ = steps_before_.value_or(steps);
  const bool begins = !is_third_step_over_ && steps >= *steps_before_ + 2;
  is_third_step_over_ |= begins;
  return begins;
}

std::optional<IdentifiedUnit> GradientRecogniser::identify(const ReductionCall& call, const ReductionShape& shape) {
  const std::lock_guard lock(mutex_);
  return units_.identify(call, shape);
}

std::string GradientRecogniser::name_of(uint64_t owner, const std::string& label) {
  const std::lock_guard lock(mutex_);
  return units_.name_of(owner, label);
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
