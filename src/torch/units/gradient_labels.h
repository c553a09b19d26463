// Finds on the calling thread what tells which gradient a reduction belongs to: the labels that FSDP puts around its
// work, tags, and autograd's own state.
#pragma once

#include <ATen/core/Tensor.h>
#include <c10/core/UndefinedTensorImpl.h>
#include <c10/util/intrusive_ptr.h>

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <utility>

#include "isthmus/unit.h"

namespace isthmus::torch_backend {

// Starts to follow labels on all threads, until the process ends. Later calls do nothing.
void install_label_tracking();

// Called in FSDP2's "FSDP::root_pre_forward", with which the forward pass of a model begins, before it gathers
// anything. Python sets it once, before the first group.
inline auto& pass_function = *new std::function<void()>;

struct ReductionShape {
  int64_t num_elements = 0;
  DataType dtype = DataType::kFloat32;
  Collective collective = Collective::kReduceScatter;
  auto operator<=>(const ReductionShape&) const = default;  // NOLINT(modernize-use-nullptr): clang-tidy 14 sees one
};

// A unit, as isthmus.prepare names it.
struct UnitTag {
  std::string name;
  uint64_t layout = 0;                                 // see UnitKey
  std::optional<Reason> why_exact = {};                // why it must stay exact; nothing: it need not
  uint64_t owner = 0;                                  // see UnitKey
  std::shared_ptr<const Sections> sections = nullptr;  // see UnitKey; FSDP2 alone
};

// A tag for the calls of one thread between push_unit() and pop_unit().
struct PushedUnit {
  UnitTag tag;
  // Whether a user pushed the tag. A user's block may hold several reductions, and reductions by FSDP, which keep
  // FSDP's units. Other tags are for the one reduction that follows.
  bool by_user = false;
  // The tag is for a gather of weights, whose Work is waited for in an order that is equal on all ranks.
  bool in_halves = false;
  // How many reductions of each shape the user's block has had so far; a process group is known by its
  // GradientRecogniser.
  std::map<std::pair<const void*, ReductionShape>, int> num_reductions;
};

// Returns whether the calling thread is in FSDP2's "FSDP::post_backward_reduce (blocks.1) [pg=4]" or FSDP1's
// "FullyShardedDataParallel._post_backward_hook". FSDP reduces gradients only there, but users' hooks run there too,
// with whatever they reduce.
bool in_fsdp_reduction();

// Makes reductions of this thread gradients of this unit, and gathers its weights, until pop_unit(). Pushes nest.
void push_unit(PushedUnit unit);
void pop_unit();
// Returns the calling thread's innermost pushed unit, or null. Valid until the next push or pop.
PushedUnit* current_unit();
// Returns current_unit() if it tells of the one call that is under way: no user pushed it.
const PushedUnit* told_unit();

// Refers to a parameter without keeping its memory alive. While one of these is held, no other tensor gets its address.
using WeakParameter = c10::weak_intrusive_ptr<c10::TensorImpl, c10::UndefinedTensorImpl>;

// Makes reductions of this parameter's gradient gradients of this unit: FSDP1 issues them for a flat parameter, DTensor
// between a gathered DTensor and its parameter.
void name_parameter(const at::Tensor& parameter, UnitTag tag);
std::optional<UnitTag> parameter_tag(const WeakParameter& parameter);

// Returns the parameter whose gradient the calling thread's running autograd node computes, if only casts, views and
// steps between DTensors and their parts lie between the two: then the node reduces the gradient itself. Returns
// nothing in hooks, in compiled graphs and for nodes of activations.
std::optional<WeakParameter> parameter_behind_node();

// Returns the calling thread's graph task in autograd; -1 outside a backward pass.
int current_graph_task();

}  // namespace isthmus::torch_backend
