#include "torch/units/unit_tracking.h"

#include <utility>

#include "communicator/plan/policy.h"

namespace isthmus::torch_backend {
namespace {

UnitKey make_key(std::string name, const ReductionShape& shape) {
  UnitKey key;
  key.name = std::move(name);
  key.num_elements = shape.num_elements;
  key.dtype = shape.dtype;
  key.collective = shape.collective;
  return key;
}

// Of that name, or else of the tag's.
IdentifiedUnit tagged_unit(const UnitTag& tag, const ReductionShape& shape, std::string name = "") {
  UnitKey key = make_key(name.empty() ? tag.name : std::move(name), shape);
  key.layout = tag.sections != nullptr ? tag.sections->hash() : tag.layout;
  key.sections = tag.sections;
  key.owner = tag.owner;
  return {std::move(key), tag.why_exact};
}

// "fsdp1:float32:4096".
std::string made_up_name(const char* kind, const ReductionShape& shape) {
  return std::string(kind) + ':' + to_string(shape.dtype) + ':' + std::to_string(shape.num_elements);
}

}  // namespace

ReductionCall current_call() {
  ReductionCall call;
  call.tag = current_unit();
  call.label = current_gradient_label();
  call.accumulated = accumulated_parameter();
  call.parameter = parameter_behind_node();
  call.graph_task = current_graph_task();
  return call;
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

std::optional<IdentifiedUnit> UnitTracker::identify(const ReductionCall& call, const ReductionShape& shape) {
  if (call.tag != nullptr) {
    return tagged_unit(*call.tag, shape);
  }
  if (call.label != nullptr) {
    return call.label->framework == Framework::kFsdp1 ? fsdp1_unit(call, shape) : fsdp2_unit(call, shape);
  }
  if (call.parameter) {
    if (const auto tag = parameter_tag(*call.parameter)) {
      return tagged_unit(*tag, shape);
    }
  }
  if (!gradients_in_backward_ || call.graph_task < 0) {
    return std::nullopt;
  }
  return call.parameter ? parameter_unit(*call.parameter, shape) : unknown_unit(call, shape);
}

// FSDP1 reduces in a hook on the accumulation of a flat parameter's gradient. That parameter is the unit, even with
// reentrant checkpointing, other models, or skipped units.
IdentifiedUnit UnitTracker::fsdp1_unit(const ReductionCall& call, const ReductionShape& shape) {
  if (!call.accumulated) {
    return {make_key(made_up_name("fsdp1", shape), shape), kUnknownParameter};
  }
  if (const auto tag = parameter_tag(*call.accumulated)) {
    return tagged_unit(*tag, shape);
  }
  const int number = flat_parameters_.number(*call.accumulated, shape);
  return tagged_unit(call.fsdp, shape, with_ordinal(made_up_name("fsdp1", shape), number));
}

// FSDP2 reduces from Python, where the object that reduces is known. The label gives it a name for people; models with
// equal names are told apart by numbers.
IdentifiedUnit UnitTracker::fsdp2_unit(const ReductionCall& call, const ReductionShape& shape) {
  if (!call.fsdp.name.empty()) {
    return tagged_unit(call.fsdp, shape);
  }
  std::string name = call.label->module_name.empty() ? "root" : call.label->module_name;
  if (call.fsdp.owner == 0) {
    return {make_key(std::move(name), shape), kUnknownCaller};
  }
  return tagged_unit(call.fsdp, shape, name_of(call.fsdp.owner, name));
}

std::string UnitTracker::name_of(uint64_t owner, const std::string& label) {
  std::map<uint64_t, int>& owners = owners_[label];
  return with_ordinal(label, owners.try_emplace(owner, static_cast<int>(owners.size())).first->second);
}

IdentifiedUnit UnitTracker::parameter_unit(const WeakParameter& parameter, const ReductionShape& shape) {
  const int number = parameters_.number(parameter, shape);
  return {make_key(with_ordinal(made_up_name("parameter", shape), number), shape), nullptr};
}

// A bucket, or a reduction of a compiled graph: it is a gradient because the option says so, and its parameters are
// unknown. So it has no residual, and is named by its order among equal ones in a backward pass.
IdentifiedUnit UnitTracker::unknown_unit(const ReductionCall& call, const ReductionShape& shape) {
  if (call.graph_task != graph_task_) {
    graph_task_ = call.graph_task;
    in_graph_task_.clear();
  }
  const int number = in_graph_task_[shape]++;
  IdentifiedUnit unit{make_key(with_ordinal(made_up_name(to_string(shape.collective), shape), number), shape),
                      covers_job_ ? nullptr : kMayHoldCopies};
  unit.key.may_keep_residual = false;
  return unit;
}

}  // namespace isthmus::torch_backend
