// Which unit a reduction belongs to: derived from the caller, never guessed. All ranks of a group get the same answer,
// because units are numbered in the order in which the group first reduces them.
#pragma once

#include <functional>
#include <map>
#include <optional>
#include <string>

#include "isthmus/communicator.h"
#include "torch/units/gradient_labels.h"

namespace isthmus::torch_backend {

// Why reductions stay exact although they are gradients.
inline constexpr const char* kReplicas = "some parameters are replicated over another mesh dimension, others are not";
inline constexpr const char* kUnknownParameter = "a unit of FSDP1 that cannot be told apart";
inline constexpr const char* kUnknownCaller = "a unit of FSDP2 that cannot be told apart";
inline constexpr const char* kMayHoldCopies = "unknown parameters, of which ranks outside of the group may hold copies";

// The caller of a reduction that FSDP labels, found by Python (python/isthmus/units/identify.py). Its owner is FSDP's
// object for parameters that are reduced together, 0 if unknown; its name is empty unless isthmus.prepare gave one.
using FsdpCaller = UnitTag;

// The context of a reduction when it is called.
struct ReductionCall {
  const UnitTag* tag = nullptr;              // pushed by the caller
  const GradientLabel* label = nullptr;      // that the call is in
  std::optional<WeakParameter> accumulated;  // the call is in a hook on this parameter's gradient
  std::optional<WeakParameter> parameter;    // what is reduced is this parameter's gradient, on its way to it
  int graph_task = -1;
  FsdpCaller fsdp;  // for FSDP's labels
};
// The context of the calling thread, without Python's part.
ReductionCall current_call();

// How much is reduced, and how.
struct ReductionShape {
  int64_t num_elements = 0;
  DataType dtype = DataType::kFloat32;
  Collective collective = Collective::kReduceScatter;
  auto operator<=>(const ReductionShape&) const = default;  // NOLINT(modernize-use-nullptr): clang-tidy 14 sees one
};

// A unit, and why its reduction must stay exact (null: it need not).
struct IdentifiedUnit {
  UnitKey key;
  const char* why_exact = nullptr;
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

// Identifies the units of one process group. One thread at a time.
//
// Names hold nothing that differs between groups, ranks or places in a mesh: names seed codecs, and replicas in other
// groups must come out alike.
class UnitTracker {
 public:
  // covers_job: no rank of the job is outside of the group.
  UnitTracker(bool covers_job, bool gradients_in_backward)
      : covers_job_(covers_job), gradients_in_backward_(gradients_in_backward) {}

  // Whether unlabelled reductions in backward passes are gradients.
  void set_gradients_in_backward(bool value) { gradients_in_backward_ = value; }
  // The unit of a reduction; nothing if it is no gradient.
  std::optional<IdentifiedUnit> identify(const ReductionCall& call, const ReductionShape& shape);
  // The name of the unit of an owner that FSDP2 labels so, as its reductions will have it.
  std::string name_of(uint64_t owner, const std::string& label);

 private:
  IdentifiedUnit fsdp1_unit(const ReductionCall& call, const ReductionShape& shape);
  IdentifiedUnit fsdp2_unit(const ReductionCall& call, const ReductionShape& shape);
  IdentifiedUnit parameter_unit(const WeakParameter& parameter, const ReductionShape& shape);
  IdentifiedUnit unknown_unit(const ReductionCall& call, const ReductionShape& shape);

  bool covers_job_;
  bool gradients_in_backward_;
  ParameterNumbers flat_parameters_;
  ParameterNumbers parameters_;
  std::map<std::string, std::map<uint64_t, int>> owners_;  // of FSDP2's names: their numbers
  int graph_task_ = -1;
  std::map<ReductionShape, int> in_graph_task_;  // how many unknown reductions of a shape there were
};

}  // namespace isthmus::torch_backend
