// Finds which gathers of a process group gather parameters, and of which unit.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <functional>
#include <map>
#include <mutex>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "isthmus/unit.h"
#include "torch/base/group.h"
#include "torch/units/gone_owners.h"

namespace isthmus::torch_backend {

// Owner and name of the unit that the calling thread gathers. owner: a number of the object that gathers its
// parameters, never reused in this process; 0: there is none. name: for people; equal on all ranks.
using WeightsCaller = std::pair<uint64_t, std::string>;
// Asks Python (python/isthmus/units/automatic.py), which sets it. Threads that make calls of groups with weights=delta
// call it in each gather without tag.
inline auto& weights_caller = *new std::function<WeightsCaller()>;

// A unit whose weights a call gathers.
struct GatheredUnit {
  UnitKey key;
  bool in_halves = false;  // its Work is waited for in an order that is equal on all ranks
};

// The threads that make the group's calls call this; `mutex_` is not held while Python is asked.
class WeightRecogniser {
 public:
  explicit WeightRecogniser(const Group& group) : group_(group) {}

  bool is_active() const { return group_.options.sends_differences() && group_.two_tier(); }
  // Returns the unit whose parameters `output` will hold; nothing if the call gathers no parameters.
  std::optional<GatheredUnit> recognise(const at::Tensor& output);
  // Returns the names that owners have had, and have no longer since the last call: they have gone, or were renamed.
  std::vector<std::string> take_gone();

 private:
  std::string numbered(const std::string& name, uint64_t owner);

  const Group& group_;

  std::mutex mutex_;                                       // guards the members below
  std::map<std::string, std::map<uint64_t, int>> owners_;  // by a name without tag: numbers of its owners, by first use
  std::map<uint64_t, std::string> names_;                  // names of owners that are not known to be gone
  std::vector<std::string> earlier_names_;                 // of owners that were renamed, for take_gone()
  GoneOwners gone_;
};

}  // namespace isthmus::torch_backend
