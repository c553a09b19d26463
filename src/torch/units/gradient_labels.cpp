#include "torch/units/gradient_labels.h"

#include <ATen/record_function.h>
#include <torch/csrc/autograd/functions/accumulate_grad.h>
#include <torch/csrc/autograd/graph_task.h>

#include <mutex>
#include <set>
#include <string_view>
#include <utility>
#include <vector>

namespace isthmus::torch_backend {
namespace {

constexpr std::string_view kFsdp2Label = "FSDP::post_backward_reduce";
constexpr std::string_view kFsdp1Label = "FullyShardedDataParallel._post_backward_hook";
constexpr std::string_view kFsdp2PassLabel = "FSDP::root_pre_forward";

thread_local int active_labels = 0;
thread_local std::vector<PushedUnit> pushed_units;

struct ParameterTags {
  std::mutex mutex;
  std::map<const c10::TensorImpl*, std::pair<WeakParameter, UnitTag>> by_address;
};

ParameterTags& parameter_tags() {
  static auto* tags = new ParameterTags;  // never destroyed: tensors may outlive static objects
  return *tags;
}

// FSDP2 appends the module: " (blocks.1) [pg=4]".
bool is_gradient_label(std::string_view label) {
  const bool is_fsdp2 =
      label.starts_with(kFsdp2Label) && (label.size() == kFsdp2Label.size() || label[kFsdp2Label.size()] == ' ');
  return is_fsdp2 || label == kFsdp1Label;
}

// enter() returns one of these for a label of FSDP, and leave() gets it back when the range ends; null means another
// range.
struct LabelContext final : at::ObserverContext {};

std::unique_ptr<at::ObserverContext> enter(const at::RecordFunction& range) {
  const std::string_view label(range.name());
  if (is_gradient_label(label)) {
    ++active_labels;
    return std::make_unique<LabelContext>();
  }
  if (label == kFsdp2PassLabel && pass_function) {
    pass_function();
  }
  return nullptr;
}

void leave(const at::RecordFunction& /*range*/, at::ObserverContext* context) {
  if (context != nullptr) {
    --active_labels;
  }
}

// Returns the only node that receives the outputs of `node`; null if there are none or several.
const torch::autograd::Node* only_input(const torch::autograd::Node& node) {
  const torch::autograd::Node* only = nullptr;
  for (const auto& edge : node.next_edges()) {
    if (edge.function == nullptr) {
      continue;
    }
    if (only != nullptr) {
      return nullptr;
    }
    only = edge.function.get();
  }
  return only;
}

// Returns whether a node passes on the elements it gets: a cast, a view, or a step between a DTensor and its part.
// Other nodes, such as embeddings, reduce activations inside them, even if only a parameter follows.
bool keeps_elements(const torch::autograd::Node& node) {
  static const std::set<std::string, std::less<>> names = {
      "AliasBackward0",        "CloneBackward0",  "DetachBackward0", "NestedRedistributeBackward",
      "RedistributeBackward",  "ToCopyBackward0", "ViewBackward0",   "_FromTorchTensorBackward",
      "_ToTorchTensorBackward"};
  return names.contains(node.name());
}

}  // namespace

void install_label_tracking() {
  static std::once_flag once;
  std::call_once(once, [] {
    at::addGlobalCallback(at::RecordFunctionCallback(enter, leave).scopes({at::RecordScope::USER_SCOPE}));
  });
}

bool in_fsdp_reduction() { return active_labels > 0; }

void push_unit(PushedUnit unit) { pushed_units.push_back(std::move(unit)); }

void pop_unit() {
  TORCH_CHECK(!pushed_units.empty(), "isthmus: pop_unit() without push_unit() on this thread");
  pushed_units.pop_back();
}

PushedUnit* current_unit() { return pushed_units.empty() ? nullptr : &pushed_units.back(); }

const PushedUnit* told_unit() {
  const PushedUnit* unit = current_unit();
  return unit != nullptr && !unit->by_user ? unit : nullptr;
}

void name_parameter(const at::Tensor& parameter, UnitTag tag) {
  TORCH_CHECK_VALUE(parameter.defined(), "isthmus: name_parameter() of an undefined tensor");
  ParameterTags& tags = parameter_tags();
  const std::lock_guard lock(tags.mutex);
  std::erase_if(tags.by_address, [](const auto& entry) { return entry.second.first.expired(); });
  tags.by_address.insert_or_assign(parameter.unsafeGetTensorImpl(),
                                   std::pair(WeakParameter(parameter.getIntrusivePtr()), std::move(tag)));
}

std::optional<UnitTag> parameter_tag(const WeakParameter& parameter) {
  ParameterTags& tags = parameter_tags();
  const std::lock_guard lock(tags.mutex);
  const auto found = tags.by_address.find(parameter._unsafe_get_target());
  return found == tags.by_address.end() ? std::nullopt : std::optional(found->second.second);
}

std::optional<WeakParameter> parameter_behind_node() {
  const auto current = torch::autograd::get_current_node();
  const torch::autograd::Node* node = current.get();
  while (node != nullptr && keeps_elements(*node)) {
    node = only_input(*node);
    if (const auto* accumulates = dynamic_cast<const torch::autograd::AccumulateGrad*>(node)) {
      return WeakParameter(accumulates->variable.getIntrusivePtr());
    }
  }
  return std::nullopt;
}

int current_graph_task() { return torch::autograd::get_current_graph_task_id(); }

}  // namespace isthmus::torch_backend
