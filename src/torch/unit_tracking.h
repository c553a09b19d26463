// Which unit a reduction belongs to. Every rank of a group comes to the same answer, because it depends on nothing but
// what is equal on all of them: labels, tags, sizes, and the order of the group's calls.
#pragma once

#include <functional>
#include <map>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "isthmus/communicator.h"
#include "torch/gradient_labels.h"

namespace isthmus::torch_backend {

// Why units that cannot be told apart, or not yet, stay exact.
inline constexpr const char* kSharedName = "several live modules share this name and size";
inline constexpr const char* kReplicas = "some parameters are replicated over another mesh dimension, others are not";
inline constexpr const char* kUnknownParameter = "a unit of FSDP1 that cannot be told apart";
inline constexpr const char* kFirstPasses = "first two passes";

// What is known of a reduction when it is called.
struct ReductionCall {
  const UnitTag* tag = nullptr;          // pushed by the caller
  const GradientLabel* label = nullptr;  // that the call is in
  std::optional<WeakParameter> parameter;
  int graph_task = -1;
  int module_ordinal = 0;                  // of FSDP2's module among those of its name and size, or one of these
  static constexpr int kSeveral = -1;      // that are alive share them
  static constexpr int kHasReplicas = -2;  // it must stay exact: see kReplicas
};
// All of it but the ordinal, of the calling thread.
ReductionCall current_call();

// How much is reduced, and how.
struct ReductionShape {
  int64_t num_elements = 0;
  DataType dtype = DataType::kFloat32;
  Collective collective = Collective::kReduceScatter;
  auto operator<=>(const ReductionShape&) const = default;
};

// A unit, and why its reduction must stay exact (null: it need not).
struct IdentifiedUnit {
  UnitKey key;
  const char* why_exact = nullptr;
};

// Numbers reductions that nothing but their order in a backward pass tells apart. A change of autograd's graph task
// ends no pass: reentrant checkpointing nests new ones. What ends it is evidence that the program is outside: a step
// of an optimizer, or a collective of the group that the same thread calls outside of every backward pass.
class PassTracker {
 public:
  struct Place {
    int occurrence = 0;    // of its kind in this pass
    bool settled = false;  // two earlier passes, which have ended, had it as well
  };

  // The next reduction of the kind `name` in a backward pass. optimizer_steps: how many there were in this process.
  Place next(const std::string& name, uint64_t optimizer_steps);
  // A collective of the group outside of every backward pass.
  void outside();
  bool any_pass_ended(uint64_t optimizer_steps) const {
    return any_pass_ended_ || (!counts_.empty() && optimizer_steps != optimizer_steps_);
  }

 private:
  void end_pass();

  // How many reductions of a kind the passes that have ended had at most, and how many two of them had.
  struct Ended {
    int most = 0;
    int second_most = 0;
  };
  std::map<std::string, int> counts_;   // of this pass
  std::map<std::string, Ended> ended_;  // by kind
  std::thread::id thread_;              // of the last reduction
  uint64_t optimizer_steps_ = 0;
  bool any_pass_ended_ = false;
};

// Numbers parameters of one shape in the order in which they appear; a parameter keeps its number. A number is never
// given again, not even when the parameter is gone.
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
class UnitTracker {
 public:
  // group_ranks: the group's global ranks as text, part of the names that this class makes up.
  UnitTracker(std::string group_ranks, bool gradients_in_backward)
      : group_ranks_(std::move(group_ranks)), gradients_in_backward_(gradients_in_backward) {}

  // Whether unlabelled reductions in backward passes are gradients.
  void set_gradients_in_backward(bool value) { gradients_in_backward_ = value; }
  // Every collective of the group comes through here, in order.
  void collective_called(int graph_task);
  // The unit of a reduction; nothing if it is no gradient.
  std::optional<IdentifiedUnit> identify(const ReductionCall& call, const ReductionShape& shape);
  bool any_pass_ended() const { return passes_.any_pass_ended(num_optimizer_steps()); }

 private:
  IdentifiedUnit fsdp1_unit(const ReductionCall& call, const ReductionShape& shape);
  IdentifiedUnit fsdp2_unit(const ReductionCall& call, const ReductionShape& shape);
  IdentifiedUnit unlabelled_unit(const ReductionShape& shape);
  std::string made_up_name(const char* kind, const ReductionShape& shape) const;

  std::string group_ranks_;
  bool gradients_in_backward_;
  PassTracker passes_;
  ParameterNumbers parameters_;
  int graph_task_ = -1;
  std::map<std::pair<std::string, ReductionShape>, int> occurrences_;  // of FSDP2's units in graph_task_
};

// "0-3,8": ascending runs.
std::string ranks_text(const std::vector<int>& ranks);

}  // namespace isthmus::torch_backend
