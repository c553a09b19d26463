// Finds on the calling thread what tells which gradient a reduction belongs to: the labels that FSDP puts around its
// work, names, and autograd's own state.
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
#include <vector>

#include "torch/units/unit_handle.h"

namespace isthmus::torch_backend {

// Starts to follow labels on all threads, until the process ends. Later calls do nothing.
void install_label_tracking();

// Called in FSDP2's "FSDP::root_pre_forward", with which the forward pass of a model begins, before it gathers
// anything. Python sets it once, before the first group.
inline auto& pass_function = *new std::function<void()>;

// What a user names, from push_name() to pop_name(). There may be several reductions, and reductions by FSDP, which
// keep FSDP's units.
struct NamedBlock {
  std::string name;
  // How many reductions of each key, without a name, it has had so far; a process group is known by its
  // GradientRecogniser.
  std::map<std::pair<const void*, UnitKey>, int> num_reductions;
};

// Returns whether the calling thread is in FSDP2's "FSDP::post_backward_reduce (blocks.1) [pg=4]" or FSDP1's
// "FullyShardedDataParallel._post_backward_hook". FSDP reduces gradients only there, but users' hooks run there too,
// with whatever they reduce.
bool in_fsdp_reduction();

// Makes reductions of this thread that nothing else tells of gradients of the unit with this name, until pop_name().
// Pushes nest.
void push_name(std::string name);
void pop_name();
// Returns the calling thread's innermost block, or null. Valid until the next push or pop.
NamedBlock* named_block();

// Refers to a parameter without keeping its memory alive. While one of these is held, no other tensor gets its address.
using WeakParameter = c10::weak_intrusive_ptr<c10::TensorImpl, c10::UndefinedTensorImpl>;

// Makes reductions of this parameter's gradient gradients of these units, each in its group, as long as somebody holds
// them: DTensor issues them between a gathered DTensor and its parameter.
void name_parameter(const at::Tensor& parameter, const std::vector<UnitHandlePtr>& units);
// Null if there is none.
UnitHandlePtr unit_of_parameter(const WeakParameter& parameter, const UnitRegistry& registry);

// Returns the parameter whose gradient the calling thread's running autograd node computes, if only casts, views and
// steps between DTensors and their parts lie between the two: then the node reduces the gradient itself. Returns
// nothing in hooks, in compiled graphs and for nodes of activations.
std::optional<WeakParameter> parameter_behind_node();

// Returns the calling thread's graph task in autograd; -1 outside a backward pass.
int current_graph_task();

}  // namespace isthmus::torch_backend
