// Which gathers of a process group are gathers of parameters, and of which unit.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <functional>
#include <map>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

#include "isthmus/unit.h"
#include "torch/base/group.h"
#include "torch/units/gone_owners.h"

namespace isthmus::torch_backend {

// What Python knows of a gather (python/isthmus/units/identify.py): nothing unless `owner` is given.
struct WeightsCaller {
  uint64_t owner = 0;  // the object that gathers its parameters: a number of this process that is never given again
  std::string name;    // for people; equal on all ranks
};
// Asked in gathers of groups with weights=delta, by the thread that makes the call.
void set_weights_caller(std::function<WeightsCaller()> caller);

// Called by the threads that make the group's calls; `mutex_` is not held while Python is asked.
class WeightRecogniser {
 public:
  explicit WeightRecogniser(const Group& group) : group_(group) {}

  // Whether the group looks for gathers of parameters at all.
  bool is_active() const { return group_.options.weights == "delta" && group_.two_tier(); }
  // The unit whose parameters `output` will hold; nothing if the gather is none of parameters.
  std::optional<UnitKey> recognise(const at::Tensor& output);
  // The names of units whose owners have gone since it was last asked.
  std::vector<std::string> take_gone();

 private:
  const Group& group_;

  std::mutex mutex_;                                       // guards what follows
  std::map<std::string, std::map<uint64_t, int>> owners_;  // of a name: their numbers, by first use
  std::map<uint64_t, std::string> names_;                  // of owners that are alive, for all that is known
  GoneOwners gone_;
};

}  // namespace isthmus::torch_backend
