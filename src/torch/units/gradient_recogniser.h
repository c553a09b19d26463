// Finds which reductions of a process group are gradients, their units, and the factors of their sums. It derives them
// from the caller and never guesses. All ranks of a group get the same answer, because units are numbered in the order
// in which the group first reduces them.
#pragma once

#include <ATen/core/Tensor.h>

#include <functional>
#include <map>
#include <mutex>
#include <optional>
#include <torch/csrc/distributed/c10d/Types.hpp>

#include "isthmus/unit.h"
#include "torch/base/call_counters.h"
#include "torch/base/group.h"
#include "torch/units/gradient_labels.h"

namespace isthmus::torch_backend {

// A reduction that FSDP makes for one of its units; Python finds it (python/isthmus/units/automatic.py).
struct FsdpCaller {
  UnitTag tag;                                  // has no name for a unit of FSDP1: its flat parameter identifies it
  std::optional<WeakParameter> flat_parameter;  // FSDP1 alone
  std::optional<Reason> why_not = {};           // FSDP does not make the reduction itself, and Python knows who does
};

// Numbers parameters of one shape in the order in which they appear. A parameter keeps its number, and numbers are
// never reused, not even those of freed parameters.
class ParameterNumbers {
 public:
  int number(const WeakParameter& parameter, const ReductionShape& shape);

 private:
  struct Numbered {
    WeakParameter parameter;
    int number;
  };
  std::map<std::pair<ReductionShape, const c10::TensorImpl*>, Numbered> by_parameter_;
  std::map<ReductionShape, int> next_;
};

// Asks Python whether FSDP itself makes the calling thread's reduction, and for which unit. Without this function, only
// pushed units of FSDP are recognised.
inline auto& fsdp_caller =
    *new std::function<std::optional<FsdpCaller>(const at::Tensor& output, const at::Tensor& input)>;

// The threads that make the group's calls call this; `mutex_` is not held while Python is asked.
//
// Names contain nothing that differs between groups, ranks or places in a mesh, because names seed codecs and replicas
// in other groups must come out alike.
class GradientRecogniser {
 public:
  // covers_job: the group has all ranks of the job.
  GradientRecogniser(const Group& group, CallCounters& counters, bool covers_job);

  // Returns the gradient that the call reduces, if it is one; otherwise counts the reason. In an all-reduce, output and
  // input are the same tensor.
  std::optional<Reduction> recognise(const at::Tensor& output, const at::Tensor& input, Collective collective,
                                     const c10d::ReduceOp& op);

 private:
  Reason why_not_recognised(const at::Tensor& output, const at::Tensor& input, bool reducible, Reason not_fsdps) const;

  // Returns the unit of a reduction that nothing tells, and why it must stay exact; nothing if it is no gradient.
  // FSDP's unit takes precedence over a user's tag. It holds mutex_ for the methods below. not_fsdps: set to why
  // a reduction inside of FSDP's is not FSDP's, where that is known.
  std::optional<Reduction> identify(const at::Tensor& output, const at::Tensor& input, const ReductionShape& shape,
                                    Reason& not_fsdps);
  Reduction flat_unit(const FsdpCaller& caller, const ReductionShape& shape);
  Reduction unknown_unit(const ReductionShape& shape);

  const Group& group_;
  CallCounters& counters_;
  const bool covers_job_;

  std::mutex mutex_;  // guards the members below
  ParameterNumbers flat_parameters_;
  ParameterNumbers parameters_;
  int graph_task_ = -1;
  std::map<ReductionShape, int> in_graph_task_;  // how many unknown reductions of each shape it has had
};

}  // namespace isthmus::torch_backend
