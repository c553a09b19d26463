// Which reductions of a process group are gradients, of which unit, and what their sum is multiplied by.
#pragma once

#include <ATen/core/Tensor.h>

#include <functional>
#include <mutex>
#include <optional>
#include <string>
#include <torch/csrc/distributed/c10d/Types.hpp>

#include "torch/backend/call_counters.h"
#include "torch/backend/group.h"
#include "torch/units/unit_tracking.h"

namespace isthmus::torch_backend {

// Why a reduction in a backward pass without label, tag or option goes to the world backend.
inline constexpr const char* kUnlabelled = "not labelled, in a backward pass";
// Why one goes there that a hook of a user's makes, or that FSDP makes from a compiled graph.
inline constexpr const char* kNotFsdps = "inside of FSDP's reduction, but not its own";

// A reduction that may take the two-tier path.
struct Gradient {
  UnitKey unit;
  double scale = 1;                 // of the sum over ranks
  const char* why_exact = nullptr;  // why it must stay exact; null: it need not
};

// Asks Python whether FSDP itself makes the calling thread's reduction, and for which unit. Without it nothing of FSDP
// is recognised but what is pushed.
using FindFsdpCaller = std::function<std::optional<FsdpCaller>(const at::Tensor& output, const at::Tensor& input)>;
void set_fsdp_caller(FindFsdpCaller find);

// Called when the third step of a group begins that was asked to leave something out, by a thread that makes its calls
// and without locks. Two steps have shown by then whether it does. Set once, before the first group.
void set_third_step_function(std::function<void()> function);

// Called by the threads that make the group's calls; `mutex_` is not held while Python is asked.
class GradientRecogniser {
 public:
  // covers_job: no rank of the job is outside of the group.
  GradientRecogniser(const Group& group, CallCounters& counters, bool covers_job);

  // The gradient that is reduced, if it is one; otherwise counts the reason. All-reduce: output and input are one
  // tensor.
  std::optional<Gradient> recognise(const at::Tensor& output, const at::Tensor& input, Collective collective,
                                    const c10d::ReduceOp& op);

  // See UnitTracker.
  std::string name_of(uint64_t owner, const std::string& label);

  // Option `gradients`. Throws OptionError where it is out of range.
  void set_gradients(const std::string& mode);
  std::string gradients() const;

 private:
  bool third_step_begins();
  std::optional<IdentifiedUnit> identify(const ReductionCall& call, const ReductionShape& shape);
  const char* why_not_recognised(const ReductionCall& call, const at::Tensor& output, const at::Tensor& input,
                                 bool reducible) const;

  const Group& group_;
  CallCounters& counters_;

  mutable std::mutex mutex_;  // guards what follows
  UnitTracker units_;
  std::optional<uint64_t> steps_before_;  // of optimizers, before the first reduction
  bool is_third_step_over_ = false;
  std::string gradients_;  // option `gradients`, as it is now
};

}  // namespace isthmus::torch_backend
