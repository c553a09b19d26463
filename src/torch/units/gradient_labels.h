// Finds, on the thread of a call, which gradient a reduction belongs to: by the labels that FSDP puts around its
// post-backward work, the tags that isthmus.prepare sets, and autograd's own state.
#pragma once

#include <c10/core/UndefinedTensorImpl.h>
#include <c10/util/intrusive_ptr.h>

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <torch/csrc/distributed/c10d/Backend.hpp>

#include "isthmus/unit.h"

namespace isthmus::torch_backend {

// Starts to follow labels, on all threads of this process, until it ends. Safe to call again.
void install_label_tracking();

// A unit as isthmus.prepare names it.
struct UnitTag {
  std::string name;
  uint64_t layout = 0;                                 // see UnitKey
  const char* why_exact = nullptr;                     // why it must stay exact; lives as long as the process
  uint64_t owner = 0;                                  // see UnitKey
  std::shared_ptr<const Sections> sections = nullptr;  // see UnitKey; of FSDP2
};

// Text that lives as long as the process: the same pointer for the same text; null for none.
const char* interned(const std::string& text);

enum class Framework : uint8_t { kFsdp1, kFsdp2 };

// The label of a gradient reduction.
struct GradientLabel {
  Framework framework = Framework::kFsdp2;
  std::string module_name;  // FSDP2: the module's path; empty for the root. FSDP1's label names no module
};

// Recognises FSDP2's "FSDP::post_backward_reduce (blocks.1)", the same without a name (the root), and FSDP1's
// "FullyShardedDataParallel._post_backward_hook".
std::optional<GradientLabel> parse_gradient_label(const char* label);

// The innermost gradient label that the calling thread is in; null outside of any. Valid until a label begins or ends.
const GradientLabel* current_gradient_label();

// Reductions of this thread are gradients of this unit until pop_unit(). They nest.
void push_unit(UnitTag tag);
void pop_unit();
// The innermost pushed unit of the calling thread; null if there is none. Valid until the next push or pop.
const UnitTag* current_unit();

// A parameter without keeping its memory alive. As long as one of these is held, no other tensor gets its address.
using WeakParameter = c10::weak_intrusive_ptr<c10::TensorImpl, c10::UndefinedTensorImpl>;

// Reductions of this parameter's gradient are gradients of this unit: those that FSDP1 issues from the hooks of a flat
// parameter, and those on the way from a gathered DTensor to the parameter.
void name_parameter(const at::Tensor& parameter, UnitTag tag);
std::optional<UnitTag> parameter_tag(const WeakParameter& parameter);

// The parameter whose gradient was accumulated last on the calling thread, if the call comes from a hook on that;
// else nothing.
std::optional<WeakParameter> accumulated_parameter();

// The parameter whose gradient the running autograd node of the calling thread computes. Between the two are only
// casts, views and steps between DTensors and their parts, so the node reduces the gradient itself. Nothing in hooks,
// compiled graphs and nodes of activations.
std::optional<WeakParameter> parameter_behind_node();

// Autograd's graph task of the calling thread; -1 outside a backward pass.
int current_graph_task();

// How many times an optimizer stepped in this process, outside of backward passes.
uint64_t num_optimizer_steps();

}  // namespace isthmus::torch_backend
