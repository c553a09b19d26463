#include "torch/unit_tracking.h"

#include <algorithm>
#include <sstream>
#include <utility>

namespace isthmus::torch_backend {
namespace {

UnitKey make_key(std::string name, uint64_t layout, const ReductionShape& shape) {
  UnitKey key;
  key.name = std::move(name);
  key.num_elements = shape.num_elements;
  key.dtype = shape.dtype;
  key.collective = shape.collective;
  key.layout = layout;
  return key;
}

IdentifiedUnit tagged_unit(const UnitTag& tag, const ReductionShape& shape) {
  return {make_key(tag.name, tag.layout, shape), tag.why_exact};
}

// "root", "root (2)" for ordinal 1.
std::string with_ordinal(std::string name, int ordinal) {
  return ordinal == 0 ? name : std::move(name) + " (" + std::to_string(ordinal + 1) + ")";
}

// "root", "root #1" for occurrence 1.
std::string with_occurrence(std::string name, int occurrence) {
  return occurrence == 0 ? name : std::move(name) + " #" + std::to_string(occurrence);
}

}  // namespace

ReductionCall current_call() {
  return {current_unit(), current_gradient_label(), accumulated_parameter(), current_graph_task(), 0};
}

PassTracker::Place PassTracker::next(const std::string& name, uint64_t optimizer_steps) {
  if (optimizer_steps != optimizer_steps_) {
    end_pass();
    optimizer_steps_ = optimizer_steps;
  }
  thread_ = std::this_thread::get_id();
  const int occurrence = counts_[name]++;
  const auto ended = ended_.find(name);
  return {occurrence, ended != ended_.end() && occurrence < ended->second.second_most};
}

// Other threads may well be outside of a backward pass while one goes on: those that run a communication hook's
// callbacks, say.
void PassTracker::outside() {
  if (std::this_thread::get_id() == thread_) {
    end_pass();
  }
}

void PassTracker::end_pass() {
  any_pass_ended_ = any_pass_ended_ || !counts_.empty();
  for (const auto& [name, count] : counts_) {
    Ended& ended = ended_[name];
    ended.second_most = std::max(ended.second_most, std::min(ended.most, count));
    ended.most = std::max(ended.most, count);
  }
  counts_.clear();
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

void UnitTracker::collective_called(int graph_task) {
  if (graph_task < 0) {
    passes_.outside();
  }
}

std::optional<IdentifiedUnit> UnitTracker::identify(const ReductionCall& call, const ReductionShape& shape) {
  if (call.tag != nullptr) {
    return tagged_unit(*call.tag, shape);
  }
  if (call.label != nullptr) {
    if (call.label->tag) {
      return tagged_unit(*call.label->tag, shape);
    }
    return call.label->framework == Framework::kFsdp1 ? fsdp1_unit(call, shape) : fsdp2_unit(call, shape);
  }
  if (gradients_in_backward_ && call.graph_task >= 0) {
    return unlabelled_unit(shape);
  }
  return std::nullopt;
}

// FSDP1 reduces in a hook on the accumulation of a flat parameter's gradient. That parameter is the unit, whatever else
// goes on: reentrant checkpointing, other models, units that are skipped.
IdentifiedUnit UnitTracker::fsdp1_unit(const ReductionCall& call, const ReductionShape& shape) {
  if (!call.parameter) {
    return {make_key(made_up_name("fsdp1", shape), 0, shape), kUnknownParameter};
  }
  if (const auto tag = parameter_tag(*call.parameter)) {
    return tagged_unit(*tag, shape);
  }
  const int number = parameters_.number(*call.parameter, shape);
  return {make_key(with_ordinal(made_up_name("fsdp1", shape), number), 0, shape), nullptr};
}

// The label names the module. A module may reduce several times in one graph task (parameters that are sharded in
// different ways): these differ by their order.
IdentifiedUnit UnitTracker::fsdp2_unit(const ReductionCall& call, const ReductionShape& shape) {
  const std::string& module_name = call.label->module_name;
  std::string name = with_ordinal(module_name.empty() ? "root" : module_name, std::max(call.module_ordinal, 0));
  if (call.graph_task >= 0) {
    if (call.graph_task != graph_task_) {
      graph_task_ = call.graph_task;
      occurrences_.clear();
    }
    const int occurrence = occurrences_[{name, shape}]++;
    name = with_occurrence(std::move(name), occurrence);
  }
  const char* why_exact = call.module_ordinal == ReductionCall::kSeveral       ? kSharedName
                          : call.module_ordinal == ReductionCall::kHasReplicas ? kReplicas
                                                                               : nullptr;
  return {make_key(std::move(name), 0, shape), why_exact};
}

// Until two passes that had this reduction have ended it is exact. DDP rebuilds its buckets after its first pass, or
// with a static graph after its second: those that it had before never get a residual. Neither does a loop in which
// nothing shows where passes end.
IdentifiedUnit UnitTracker::unlabelled_unit(const ReductionShape& shape) {
  std::string name = made_up_name(to_string(shape.collective), shape);
  const auto place = passes_.next(name, num_optimizer_steps());
  return {make_key(with_occurrence(std::move(name), place.occurrence), 0, shape),
          place.settled ? nullptr : kFirstPasses};
}

std::string UnitTracker::made_up_name(const char* kind, const ReductionShape& shape) const {
  std::ostringstream name;
  name << kind << '@' << group_ranks_ << ':' << to_string(shape.dtype) << ':' << shape.num_elements;
  return name.str();
}

std::string ranks_text(const std::vector<int>& ranks) {
  std::ostringstream text;
  for (size_t first = 0; first < ranks.size();) {
    size_t last = first;
    while (last + 1 < ranks.size() && ranks[last + 1] == ranks[last] + 1) {
      ++last;
    }
    text << (first > 0 ? "," : "") << ranks[first];
    if (last > first) {
      text << '-' << ranks[last];
    }
    first = last + 1;
  }
  return text.str();
}

}  // namespace isthmus::torch_backend
