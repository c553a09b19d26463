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
thread_local std::vector<NamedBlock> named_blocks;

struct NamedParameters {
  std::mutex mutex;
  std::map<const c10::TensorImpl*, std::pair<WeakParameter, std::vector<std::weak_ptr<UnitHandle>>>> by_address;
};

NamedParameters& named_parameters() {
  static auto* named = new NamedParameters;  // never destroyed: tensors may outlive static objects
  return *named;
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

void push_name(std::string name) { named_blocks.push_back({std::move(name), {}}); }

void pop_name() {
  TORCH_CHECK(!named_blocks.empty(), "isthmus: pop_name() without push_name() on this thread");
  named_blocks.pop_back();
}

NamedBlock* named_block() { return named_blocks.empty() ? nullptr : &named_blocks.back(); }

void name_parameter(const at::Tensor& parameter, const std::vector<UnitHandlePtr>& units) {
  TORCH_CHECK_VALUE(parameter.defined(), "isthmus: name_parameter() of an undefined tensor");
  NamedParameters& named = named_parameters();
  const std::lock_guard lock(named.mutex);
  std::erase_if(named.by_address, [](const auto& entry) { return entry.second.first.expired(); });
  named.by_address.insert_or_assign(parameter.unsafeGetTensorImpl(),
                                    std::pair(WeakParameter(parameter.getIntrusivePtr()),
                                              std::vector<std::weak_ptr<UnitHandle>>(units.begin(), units.end())));
}

UnitHandlePtr unit_of_parameter(const WeakParameter& parameter, const UnitRegistry& registry) {
  NamedParameters& named = named_parameters();
  const std::lock_guard lock(named.mutex);
  const auto found = named.by_address.find(parameter._unsafe_get_target());
  for (const auto& one :
       found != named.by_address.end() ? found->second.second : std::vector<std::weak_ptr<UnitHandle>>{}) {
    UnitHandlePtr unit = one.lock();
    if (unit != nullptr && unit->is_of(registry)) {
      return unit;
    }
  }
  return nullptr;
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
