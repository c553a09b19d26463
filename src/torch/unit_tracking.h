// Which FSDP unit issues the reduction that is being called: read from the labels that FSDP puts around its
// post-backward work, and from autograd's graph task.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "isthmus/buffer.h"

namespace isthmus::torch_backend {

// Starts to follow FSDP's labels, on all threads of this process, for good. Safe to call again.
void install_label_tracking();

// The label of a gradient reduction.
struct GradientLabel {
  std::string name;    // FSDP2's module name, or "root" / "fsdp1" where the label names no module
  bool named = false;  // the label named the module
};

// Recognises FSDP2's "FSDP::post_backward_reduce (blocks.1)", the same without a name (the root), and FSDP1's
// "FullyShardedDataParallel._post_backward_hook".
std::optional<GradientLabel> parse_gradient_label(const char* label);

// The innermost gradient label that the calling thread is in.
std::optional<GradientLabel> current_gradient_label();

// Autograd's graph task of the calling thread; -1 outside a backward pass.
int current_graph_task();

// Makes the unit names of one process group, equal on all its ranks. One thread at a time.
class UnitNamer {
 public:
  // group_ranks: the group's global ranks as text, part of the names of units whose label has no name.
  explicit UnitNamer(std::string group_ranks) : group_ranks_(std::move(group_ranks)) {}

  // The name of the unit of one reduction. A second call with the same label, size and type in one backward pass
  // (graph task) gets another name, " #1". Outside a backward pass each call stands alone.
  std::string name(const GradientLabel& label, int64_t num_elements, DataType dtype, int graph_task);

 private:
  std::string group_ranks_;
  int graph_task_ = -1;
  std::map<std::string, int> occurrences_;  // in graph_task_
};

// "0-3,8": ascending runs.
std::string ranks_text(const std::vector<int>& ranks);

}  // namespace isthmus::torch_backend
