// The state of a group's units on all its devices, for checkpoints and loss scales.
#pragma once

#include <ATen/core/Tensor.h>

#include <functional>
#include <mutex>
#include <vector>

#include "isthmus/communicator.h"
#include "torch/base/group.h"
#include "torch/sides/side.h"
#include "torch/units/gone_owners.h"

namespace isthmus::torch_backend {

// A unit's state with memory of its own. See UnitState.
struct SavedUnit {
  UnitKey key;
  uint64_t step = 0;
  double scale = 0;
  at::Tensor residual;              // float32, 1-D; undefined: none
  at::Tensor result_residual;       // the same
  std::vector<ParkedState> parked;  // its values are views of parked_values, one after the other
  at::Tensor parked_values;         // as `residual`
};

// Called in program order with the collectives, by the threads that call those; each method but end_step blocks until
// it is done. Without two tiers there are no units, and methods do nothing. Not collective, but all ranks make the same
// calls. `mutex_` is held for moments; no other lock is taken under it.
class DeviceUnits {
 public:
  // sides: the CPU's first. With a GPU's side, gradients are assumed to be on the GPU until the first reduction.
  DeviceUnits(const Group& group, std::vector<Side*> sides);

  // Throws ValueError if a residual is no contiguous float32 tensor on the CPU. The unit goes to the device that
  // reduces gradients next.
  void load(const SavedUnit& unit);
  // Before a reduction there.
  void bring_loaded_to(Side& side);

  // See Communicator.
  std::vector<SavedUnit> states();
  void clear(const Owners& owners);
  void scale_residuals(double factor, const Owners& owners);
  void count_dropped(int64_t num_units);
  // The end of a step of the owners' units, which is counted; their residuals follow a loss scale that is `factor`
  // times as large as before. 0: nothing can be scaled back, and they are dropped. Does not block.
  void end_step(bool skipped, double factor, const Owners& owners);

 private:
  void forget_those_gone();
  void run(Side& side, const char* name, const std::function<void(Communicator&)>& action);
  void run_everywhere(const char* name, const std::function<void(Communicator&)>& action);

  const Group& group_;
  const std::vector<Side*> sides_;
  GoneOwners gone_;

  std::mutex mutex_;     // guards what follows
  Side* reduces_;        // that of the last reduction
  bool loaded_ = false;  // units, since then
};

}  // namespace isthmus::torch_backend
