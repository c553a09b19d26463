#include "torch/units/gradient_recogniser.h"

#include <utility>

#include "communicator/plan/policy.h"
#include "torch/base/tensors.h"

namespace isthmus::torch_backend {
namespace {

UnitKey make_key(std::string name, const CallShape& shape) {
  return {.name = std::move(name),
          .num_elements = shape.num_elements,
          .dtype = shape.dtype,
          .collective = shape.collective};
}

// Returns "parameter:float32:4096".
std::string made_up_name(const char* kind, const CallShape& shape) {
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

Reduction reduction_of(const UnitCall& call, const CallShape& shape, bool on_gpu) {
  Reduction reduction = call.unit->reduction(shape, on_gpu, call.sections, call.with_gradients);
  reduction.why_exact = call.why_exact;
  reduction.input_stream = call.input_stream;
  return reduction;
}

}  // namespace

const UnitCall* GradientRecogniser::told() const {
  const UnitCall* const call = told_call();
  return call != nullptr && call->unit->is_of(units_) ? call : nullptr;
}

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
    const CallShape shape{input.numel(), *dtype, collective};
    const UnitCall* const call = told();
    gradient = call != nullptr ? reduction_of(*call, shape, input.is_cuda())
                               : unit_of_this_call(output, input, shape, not_fsdps);
  }
  if (!gradient) {
    counters_.count_exact(why_not_recognised(output, input, reducible, not_fsdps));
    return std::nullopt;
  }
  gradient->scale = *scale;
  return gradient;
}

UnitPtr GradientRecogniser::recognise_gather(const at::Tensor& output) {
  const UnitCall* const call = told();
  const UnitHandlePtr unit = call != nullptr ? call->unit : weights_caller ? weights_caller(backend_) : nullptr;
  if (unit == nullptr) {
    return nullptr;
  }
  const DataType dtype = floating_dtype(output.scalar_type()).value_or(DataType::kByte);
  const auto num_elements = dtype == DataType::kByte ? static_cast<int64_t>(output.nbytes()) : output.numel();
  return unit->gathered({num_elements, dtype, Collective::kAllGather}, output.is_cuda());
}

int ParameterNumbers::number(const WeakParameter& parameter, const CallShape& shape) {
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

std::optional<Reduction> GradientRecogniser::unit_of_this_call(const at::Tensor& output, const at::Tensor& input,
                                                               const CallShape& shape, Reason& not_fsdps) {
  const bool on_gpu = input.is_cuda();
  if (in_fsdp_reduction() && fsdp_caller) {
    if (const FsdpAnswer answer = fsdp_caller(backend_, output, input)) {
      if (const auto* call = std::get_if<UnitCall>(&*answer)) {
        return reduction_of(*call, shape, on_gpu);
      }
      not_fsdps = std::get<Reason>(*answer);
    }
  }
  const std::optional<WeakParameter> parameter = parameter_behind_node();
  const std::lock_guard lock(mutex_);
  if (NamedBlock* const block = named_block()) {
    // If a user reduces several tensors of one shape under one name, their order in the block tells them apart.
    const int number = block->num_reductions[{this, shape}]++;
    return Reduction{units_.of_untold_call(make_key(with_ordinal(block->name, number), shape), {}, on_gpu)};
  }
  if (in_fsdp_reduction()) {
    return std::nullopt;
  }
  if (parameter) {
    if (const UnitHandlePtr unit = unit_of_parameter(*parameter, units_)) {
      return unit->reduction(shape, on_gpu);
    }
  }
  if (group_.options.gradients != GradientSource::kBackward || current_graph_task() < 0) {
    return std::nullopt;
  }
  if (parameter) {
    const int number = parameters_.number(*parameter, shape);
    const UnitKey key = make_key(with_ordinal(made_up_name("parameter", shape), number), shape);
    return Reduction{units_.of_untold_call(key, {}, on_gpu)};
  }
  return unknown_unit(shape, on_gpu);
}

// This is a bucket or a compiled graph's reduction: a gradient because the option says so, with unknown parameters. So
// it has no residual, and its order among equal reductions of the backward pass names it.
Reduction GradientRecogniser::unknown_unit(const CallShape& shape, bool on_gpu) {
  const int graph_task = current_graph_task();
  if (std::exchange(graph_task_, graph_task) != graph_task) {
    in_graph_task_.clear();
  }
  const int number = in_graph_task_[shape]++;
  UnitKey key = make_key(with_ordinal(made_up_name(to_string(shape.collective), shape), number), shape);
  key.may_keep_residual = false;
  const auto why_exact = covers_job_ ? std::nullopt : std::optional(Reason::kMayHoldCopies);
  return {units_.of_untold_call(std::move(key), why_exact, on_gpu)};
}

Reason GradientRecogniser::why_not_recognised(const at::Tensor& output, const at::Tensor& input, bool reducible,
                                              Reason not_fsdps) const {
  if (told() == nullptr && named_block() == nullptr && !in_fsdp_reduction() && current_graph_task() < 0) {
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
