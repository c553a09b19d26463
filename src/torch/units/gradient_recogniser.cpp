#include "torch/units/gradient_recogniser.h"

#include <utility>

#include "communicator/plan/policy.h"

namespace isthmus::torch_backend {
namespace {

UnitKey named(UnitKey key, std::string name) {
  key.name = std::move(name);
  return key;
}

// Returns "parameter:float32:4096".
std::string made_up_name(const char* kind, const UnitKey& key) {
  return std::string(kind) + ':' + to_string(key.dtype) + ':' + std::to_string(key.num_elements);
}

}  // namespace

int ParameterNumbers::number(const WeakParameter& parameter, const UnitKey& key) {
  const auto place = std::pair(key, static_cast<const c10::TensorImpl*>(parameter._unsafe_get_target()));
  const auto found = by_parameter_.find(place);
  if (found != by_parameter_.end()) {
    return found->second.number;
  }
  std::erase_if(by_parameter_, [](const auto& entry) { return entry.second.parameter.expired(); });
  const int number = next_[key]++;
  by_parameter_.emplace(place, Numbered{parameter, number});
  return number;
}

std::optional<Reduction> GradientRecogniser::unit_of_this_call(const at::Tensor& output, const at::Tensor& input,
                                                               const std::optional<UnitKey>& key) {
  Reason not_fsdps = Reason::kNotFsdps;
  std::optional<Reduction> gradient = key ? find_unit(output, input, *key, not_fsdps) : std::nullopt;
  if (!gradient) {
    counters_.count_exact(why_not_recognised(output, input, key.has_value(), not_fsdps));
  }
  return gradient;
}

std::optional<Reduction> GradientRecogniser::find_unit(const at::Tensor& output, const at::Tensor& input,
                                                       const UnitKey& key, Reason& not_fsdps) {
  const bool on_gpu = input.is_cuda();
  if (in_fsdp_reduction() && fsdp_caller) {
    if (const FsdpAnswer answer = fsdp_caller(backend_, output, input)) {
      if (const auto* call = std::get_if<UnitCall>(&*answer)) {
        return call->reduction(key, on_gpu);
      }
      not_fsdps = std::get<Reason>(*answer);
    }
  }
  const std::optional<WeakParameter> parameter = parameter_behind_node();
  const std::lock_guard lock(mutex_);
  if (NamedBlock* const block = named_block()) {
    // If a user reduces several tensors of one size under one name, their order in the block tells them apart.
    const int number = block->num_reductions[{this, key}]++;
    return Reduction{units_.of_untold_call(named(key, with_ordinal(block->name, number)), {}, on_gpu)};
  }
  if (in_fsdp_reduction()) {
    return std::nullopt;
  }
  if (parameter) {
    if (const UnitHandlePtr unit = unit_of_parameter(*parameter, units_)) {
      return UnitCall{unit}.reduction(key, on_gpu);
    }
  }
  if (group_.options.gradients != GradientSource::kBackward || current_graph_task() < 0) {
    return std::nullopt;
  }
  if (parameter) {
    const int number = parameters_.number(*parameter, key);
    const std::string name = with_ordinal(made_up_name("parameter", key), number);
    return Reduction{units_.of_untold_call(named(key, name), {}, on_gpu)};
  }
  return unknown_unit(key, on_gpu);
}

// This is a bucket or a compiled graph's reduction: a gradient because the option says so, with unknown parameters. So
// it has no residual, and its order among equal reductions of the backward pass names it.
Reduction GradientRecogniser::unknown_unit(UnitKey key, bool on_gpu) {
  const int graph_task = current_graph_task();
  if (std::exchange(graph_task_, graph_task) != graph_task) {
    in_graph_task_.clear();
  }
  const int number = in_graph_task_[key]++;
  key.name = with_ordinal(made_up_name(to_string(key.collective), key), number);
  key.may_keep_residual = false;
  const auto why_exact = covers_job_ ? std::nullopt : std::optional(Reason::kMayHoldCopies);
  return {units_.of_untold_call(std::move(key), why_exact, on_gpu)};
}

Reason GradientRecogniser::why_not_recognised(const at::Tensor& output, const at::Tensor& input, bool reducible,
                                              Reason not_fsdps) const {
  if (!group_.two_tier()) {
    return Reason::kOneTier;
  }
  if (units_.told() == nullptr && named_block() == nullptr && !in_fsdp_reduction() && current_graph_task() < 0) {
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
