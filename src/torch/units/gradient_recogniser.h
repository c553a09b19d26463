// Finds which calls of a process group reduce gradients, and their units, where nobody tells of them. It derives them
// from the caller and never guesses. All ranks of a group get the same answer, because units are numbered in the order
// in which the group first reduces them.
#pragma once

#include <ATen/core/Tensor.h>

#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <torch/csrc/distributed/c10d/Backend.hpp>
#include <utility>
#include <variant>

#include "torch/base/call_counters.h"
#include "torch/base/group.h"
#include "torch/units/gradient_labels.h"
#include "torch/units/unit_registry.h"

namespace isthmus::torch_backend {

// Numbers parameters of one size and type in the order in which they appear. A parameter keeps its number, and numbers
// are never reused, not even those of freed parameters. Keys have no name.
class ParameterNumbers {
 public:
  int number(const WeakParameter& parameter, const UnitKey& key);

 private:
  struct Numbered {
    WeakParameter parameter;
    int number;
  };
  std::map<std::pair<UnitKey, const c10::TensorImpl*>, Numbered> by_parameter_;
  std::map<UnitKey, int> next_;
};

// A reduction that FSDP makes; or why it does not make the calling thread's, where that is known.
using FsdpAnswer = std::optional<std::variant<Reason, UnitCall>>;

// Asks Python (python/isthmus/model/automatic.py), which sets them: whether FSDP itself makes the calling thread's
// reduction, and for which unit; and whose parameters it gathers, with weights=delta. Null: nobody's. Without these
// functions, only calls that tell of their unit are recognised.
inline auto& fsdp_caller =
    *new std::function<FsdpAnswer(c10d::Backend& group, const at::Tensor& output, const at::Tensor& input)>;
inline auto& weights_caller = *new std::function<UnitHandlePtr(c10d::Backend& group)>;

// The threads that make the group's calls call this; `mutex_` is not held while Python is asked.
//
// Names contain nothing that differs between groups, ranks or places in a mesh, because names seed codecs and replicas
// in other groups must come out alike.
class GradientRecogniser {
 public:
  // covers_job: the group has all ranks of the job. backend: the group, for Python.
  GradientRecogniser(const Group& group, UnitRegistry& units, CallCounters& counters, bool covers_job,
                     c10d::Backend& backend)
      : group_(group), units_(units), counters_(counters), covers_job_(covers_job), backend_(backend) {}

  // Returns the gradient that the call reduces, if it is one; otherwise counts the reason. key: of the call, without a
  // name; nothing: it cannot be reduced in two tiers. In an all-reduce, output and input are the same tensor.
  std::optional<Reduction> unit_of_this_call(const at::Tensor& output, const at::Tensor& input,
                                             const std::optional<UnitKey>& key);

 private:
  Reason why_not_recognised(const at::Tensor& output, const at::Tensor& input, bool reducible, Reason not_fsdps) const;

  // FSDP's unit takes precedence over a user's name. It holds mutex_ for the methods below. not_fsdps: set to why a
  // reduction inside of FSDP's is not FSDP's, where that is known.
  std::optional<Reduction> find_unit(const at::Tensor& output, const at::Tensor& input, const UnitKey& key,
                                     Reason& not_fsdps);
  Reduction unknown_unit(UnitKey key, bool on_gpu);

  const Group& group_;
  UnitRegistry& units_;
  CallCounters& counters_;
  const bool covers_job_;
  c10d::Backend& backend_;

  std::mutex mutex_;  // guards the members below
  ParameterNumbers parameters_;
  int graph_task_ = -1;
  std::map<UnitKey, int> in_graph_task_;  // how many unknown reductions of each key it has had
};

}  // namespace isthmus::torch_backend
