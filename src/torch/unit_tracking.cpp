#include "torch/unit_tracking.h"

#include <ATen/record_function.h>
#include <torch/csrc/autograd/graph_task.h>

#include <algorithm>
#include <mutex>
#include <sstream>
#include <string_view>
#include <vector>

namespace isthmus::torch_backend {
namespace {

constexpr std::string_view kFsdp2Label = "FSDP::post_backward_reduce";
constexpr std::string_view kFsdp1Label = "FullyShardedDataParallel._post_backward_hook";

struct ActiveLabel {
  uint64_t id;
  GradientLabel label;
};
thread_local std::vector<ActiveLabel> active_labels;
thread_local uint64_t next_label_id = 0;

// Carries a label from its beginning to its end.
struct LabelContext final : at::ObserverContext {
  explicit LabelContext(uint64_t label_id) : id(label_id) {}
  uint64_t id;
};

std::unique_ptr<at::ObserverContext> enter(const at::RecordFunction& range) {
  auto label = parse_gradient_label(range.name());
  if (!label) {
    return nullptr;
  }
  active_labels.push_back({next_label_id, *std::move(label)});
  return std::make_unique<LabelContext>(next_label_id++);
}

void leave(const at::RecordFunction& /*range*/, at::ObserverContext* context) {
  if (context == nullptr) {
    return;
  }
  const uint64_t id = static_cast<LabelContext*>(context)->id;
  std::erase_if(active_labels, [id](const ActiveLabel& active) { return active.id == id; });
}

}  // namespace

void install_label_tracking() {
  static std::once_flag once;
  std::call_once(once, [] {
    at::addGlobalCallback(at::RecordFunctionCallback(enter, leave).scopes({at::RecordScope::USER_SCOPE}));
  });
}

std::optional<GradientLabel> parse_gradient_label(const char* label) {
  const std::string_view text(label);
  if (text == kFsdp2Label) {
    return GradientLabel{"root", false};
  }
  if (text == kFsdp1Label) {
    return GradientLabel{"fsdp1", false};
  }
  if (text.starts_with(kFsdp2Label)) {
    const auto name = text.substr(kFsdp2Label.size());
    if (name.size() > 3 && name.starts_with(" (") && name.ends_with(")")) {
      return GradientLabel{std::string(name.substr(2, name.size() - 3)), true};
    }
  }
  return std::nullopt;
}

std::optional<GradientLabel> current_gradient_label() {
  if (active_labels.empty()) {
    return std::nullopt;
  }
  return active_labels.back().label;
}

int current_graph_task() { return torch::autograd::get_current_graph_task_id(); }

std::string UnitNamer::name(const GradientLabel& label, int64_t num_elements, DataType dtype, int graph_task) {
  std::string name = label.name;
  if (!label.named) {
    name += "@" + group_ranks_ + ":" + to_string(dtype) + ":" + std::to_string(num_elements);
  }
  if (graph_task < 0) {
    return name;
  }
  if (graph_task != graph_task_) {
    graph_task_ = graph_task;
    occurrences_.clear();
  }
  const std::string key = name + " " + std::to_string(num_elements) + " " + to_string(dtype);
  const int occurrence = occurrences_[key]++;
  return occurrence == 0 ? name : name + " #" + std::to_string(occurrence);
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
