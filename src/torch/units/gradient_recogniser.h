// Which reductions of a process group are gradients, of which unit, and what their sum is multiplied by: derived from
// the caller, never guessed. All ranks of a group get the same answer, because units are numbered in the order in which
// the group first reduces them.
#pragma once

#include <ATen/core/Tensor.h>

#include <functional>
#include <map>
#include <mutex>
#include <optional>
#include <string>
#include <torch/csrc/distributed/c10d/Types.hpp>

#include "isthmus/unit.h"
#include "torch/base/call_counters.h"
#include "torch/base/group.h"
#include "torch/units/gradient_labels.h"

namespace isthmus::torch_backend {

// Why a reduction in a backward pass without label, tag or option goes to the world backend.
inline constexpr const char* kUnlabelled = "not labelled, in a backward pass";
// Why one goes there that a hook of a user's makes, or that FSDP makes from a compiled graph.
inline constexpr const char* kNotFsdps = "inside of FSDP's reduction, but not its own";

// Why reductions stay exact although they are gradients.
inline constexpr const char* kReplicas = "some parameters are replicated over another mesh dimension, others are not";
inline constexpr const char* kMayHoldCopies = "unknown parameters, of which ranks outside of the group may hold copies";

// A reduction that FSDP makes for one of its units, found by Python (python/isthmus/units/identify.py).
struct FsdpCaller {
  UnitTag tag;  // without a name for an unprepared unit of FSDP1: its flat parameter tells it apart
  // Its name is what FSDP2 calls an unprepared unit: models of equal names are told apart by their owners.
  bool is_label = false;
  std::optional<WeakParameter> flat_parameter;  // of FSDP1
};

// The context of a reduction when it is called.
struct ReductionCall {
  PushedUnit* pushed = nullptr;            // by the caller
  bool in_fsdp_reduction = false;          // the call is in FSDP's label
  std::optional<FsdpCaller> fsdp;          // and is FSDP's own
  std::optional<WeakParameter> parameter;  // what is reduced is this parameter's gradient, on its way to it
  int graph_task = -1;
};

// Numbers parameters of one shape in the order in which they appear; a parameter keeps its number. Numbers are never
// reused, not even those of freed parameters.
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

// Asks Python whether FSDP itself makes the calling thread's reduction, and for which unit. Without it nothing of FSDP
// is recognised but what is pushed.
using FindFsdpCaller = std::function<std::optional<FsdpCaller>(const at::Tensor& output, const at::Tensor& input)>;
void set_fsdp_caller(FindFsdpCaller find);

// Called when the third step of a group begins that was asked to leave something out, by a thread that makes its calls
// and without locks. Two steps have shown by then whether it does. Set once, before the first group.
void set_third_step_function(std::function<void()> function);

// Called by the threads that make the group's calls; `mutex_` is not held while Python is asked.
//
// Names hold nothing that differs between groups, ranks or places in a mesh: names seed codecs, and replicas in other
// groups must come out alike.
class GradientRecogniser {
 public:
  // covers_job: no rank of the job is outside of the group.
  GradientRecogniser(const Group& group, CallCounters& counters, bool covers_job);

  // The gradient that is reduced, if it is one; otherwise counts the reason. All-reduce: output and input are one
  // tensor.
  std::optional<Reduction> recognise(const at::Tensor& output, const at::Tensor& input, Collective collective,
                                     const c10d::ReduceOp& op);

  // The name of the unit of an owner that FSDP2 labels so, as its reductions will have it.
  std::string name_of(uint64_t owner, const std::string& label);

  // Option `gradients`. Throws OptionError where it is out of range.
  void set_gradients(const std::string& mode);
  std::string gradients() const;

 private:
  bool third_step_begins();
  const char* why_not_recognised(const ReductionCall& call, const at::Tensor& output, const at::Tensor& input,
                                 bool reducible) const;

  // The unit of a reduction, and why it must stay exact; nothing if it is no gradient. A pushed tag of the one
  // reduction stands before the unit of FSDP that makes the call, and that before a user's tag. Under mutex_, as what
  // follows.
  std::optional<Reduction> identify(const ReductionCall& call, const ReductionShape& shape);
  Reduction fsdp_unit(const FsdpCaller& caller, const ReductionShape& shape);
  Reduction flat_unit(const FsdpCaller& caller, const ReductionShape& shape);
  Reduction pushed_unit(PushedUnit& pushed, const ReductionShape& shape) const;
  Reduction parameter_unit(const WeakParameter& parameter, const ReductionShape& shape);
  Reduction unknown_unit(const ReductionCall& call, const ReductionShape& shape);
  std::string numbered(const std::string& label, uint64_t owner);

  const Group& group_;
  CallCounters& counters_;
  const bool covers_job_;

  mutable std::mutex mutex_;  // guards what follows
  ParameterNumbers flat_parameters_;
  ParameterNumbers parameters_;
  std::map<std::string, std::map<uint64_t, int>> owners_;  // of FSDP2's names: their numbers
  int graph_task_ = -1;
  std::map<ReductionShape, int> in_graph_task_;  // how many unknown reductions of a shape there were
  std::optional<uint64_t> steps_before_;         // of optimizers, before the first reduction
  bool is_third_step_over_ = false;
  std::string gradients_;  // option `gradients`, as it is now
};

}  // namespace isthmus::torch_backend
