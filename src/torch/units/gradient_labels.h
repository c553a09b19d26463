// Finds, on the thread of a call, what says which gradient a reduction belongs to: the labels that FSDP puts around its
// post-backward work, tags, and autograd's own state.
#pragma once

#include <c10/core/UndefinedTensorImpl.h>
#include <c10/util/intrusive_ptr.h>

#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <torch/csrc/distributed/c10d/Backend.hpp>
#include <utility>

#include "isthmus/communicator.h"
#include "isthmus/unit.h"

namespace isthmus::torch_backend {

// Starts to follow labels, on all threads of this process, until it ends. Safe to call again.
void install_label_tracking();

// How much is reduced, and how.
struct ReductionShape {
  int64_t num_elements = 0;
  DataType dtype = DataType::kFloat32;
  Collective collective = Collective::kReduceScatter;
  auto operator<=>(const ReductionShape&) const = default;  // NOLINT(modernize-use-nullptr): clang-tidy 14 sees one
};

// A unit as isthmus.prepare names it.
struct UnitTag {
  std::string name;
  uint64_t layout = 0;                                 // see UnitKey
  const char* why_exact = nullptr;                     // why it must stay exact; lives as long as the process
  uint64_t owner = 0;                                  // see UnitKey
  std::shared_ptr<const Sections> sections = nullptr;  // see UnitKey; of FSDP2
};

// A tag for a block of calls of one thread.
struct PushedUnit {
  UnitTag tag;
  // A user's block may hold several reductions, and those that FSDP makes, which are units of FSDP's. Other tags are
  // for the one reduction that follows.
  bool by_user = false;
  // How many reductions of a shape a user's block had so far, by process group: its GradientRecogniser.
  std::map<std::pair<const void*, ReductionShape>, int> num_reductions;
};

// Text that lives as long as the process: the same pointer for the same text; null for none.
const char* interned(const std::string& text);

// Whether the calling thread is in FSDP2's "FSDP::post_backward_reduce (blocks.1) [pg=4]" or FSDP1's
// "FullyShardedDataParallel._post_backward_hook". FSDP reduces gradients there and nowhere else, but hooks of users,
// and whatever those reduce, run there, too.
bool in_fsdp_reduction();

// Reductions of this thread are gradients of this unit until pop_unit(). They nest.
void push_unit(UnitTag tag, bool by_user);
void pop_unit();
// The innermost pushed unit of the calling thread; null if there is none. Valid until the next push or pop.
PushedUnit* current_unit();

// A parameter without keeping its memory alive. As long as one of these is held, no other tensor gets its address.
using WeakParameter = c10::weak_intrusive_ptr<c10::TensorImpl, c10::UndefinedTensorImpl>;

// Reductions of this parameter's gradient are gradients of this unit: those that FSDP1 issues for a flat parameter, and
// those on the way from a gathered DTensor to the parameter.
void name_parameter(const at::Tensor& parameter, UnitTag tag);
std::optional<UnitTag> parameter_tag(const WeakParameter& parameter);

// The parameter whose gradient the running autograd node of the calling thread computes. Between the two are only
// casts, views and steps between DTensors and their parts, so the node reduces the gradient itself. Nothing in hooks,
// compiled graphs and nodes of activations.
std::optional<WeakParameter> parameter_behind_node();

// Autograd's graph task of the calling thread; -1 outside a backward pass.
int current_graph_task();

// How many times an optimizer stepped in this process, outside of backward passes.
uint64_t num_optimizer_steps();

}  // namespace isthmus::torch_backend
