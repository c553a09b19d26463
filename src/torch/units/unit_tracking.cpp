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
IdentifiedUnit tagged_unit(const UnitTag& tag, const ReductionShape& shape, const std::string& name = "") {
  UnitKey key = make_key(name.empty() ? tag.name : name, shape);
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
  call.pushed = current_unit();
  call.in_fsdp_reduction = in_fsdp_reduction();
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
  if (!gradients_in_backward_ || call.graph_task < 0) {
    return std::nullopt;
  }
  return call.parameter ? parameter_unit(*call.parameter, shape) : unknown_unit(call, shape);
}

IdentifiedUnit UnitTracker::fsdp_unit(const FsdpCaller& caller, const ReductionShape& shape) {
  if (caller.flat_parameter) {
    return flat_unit(caller, shape);
  }
  return tagged_unit(caller.tag, shape, caller.is_label ? name_of(caller.tag.owner, caller.tag.name) : "");
}

// An unprepared unit of FSDP1 has no name but its flat parameter: that is the unit, even with reentrant checkpointing,
// other models, or skipped units.
IdentifiedUnit UnitTracker::flat_unit(const FsdpCaller& caller, const ReductionShape& shape) {
  if (const auto tag = parameter_tag(*caller.flat_parameter)) {
    return tagged_unit(*tag, shape);
  }
  const int number = flat_parameters_.number(*caller.flat_parameter, shape);
  return tagged_unit(caller.tag, shape, with_ordinal(made_up_name("fsdp1", shape), number));
}

std::string UnitTracker::name_of(uint64_t owner, const std::string& label) {
  std::map<uint64_t, int>& owners = owners_[label];
  return with_ordinal(label, owners.try_emplace(owner, static_cast<int>(owners.size())).first->second);
}

// Several tensors of one shape that a user reduces under one name are told apart by their order in the block.
IdentifiedUnit UnitTracker::pushed_unit(PushedUnit& pushed, const ReductionShape& shape) const {
  IdentifiedUnit unit = tagged_unit(pushed.tag, shape);
  if (pushed.by_user) {
    unit.key.name = with_ordinal(std::move(unit.key.name), pushed.num_reductions[{this, shape}]++);
  }
  return unit;
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
