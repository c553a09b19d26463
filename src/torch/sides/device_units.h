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

// A unit's state (see UnitState) that owns its memory.
struct SavedUnit {
  UnitKey key;
  uint64_t step = 0;
  double scale = 0;
  at::Tensor residual;              // float32, 1-D; empty if there is none
  at::Tensor result_residual;       // the same
  std::vector<ParkedState> parked;  // their values are consecutive views of parked_values
  at::Tensor parked_values;         // as `residual`
};

// The threads that make the collectives call these methods in program order with the collectives. Each method blocks
// until it is done. Without two tiers there are no units, and the methods do nothing. No method is collective, but all
// ranks make the same calls. `mutex_` is held for moments; no other lock is taken under it.
class DeviceUnits {
 public:
  // sides: the CPU's first. If there is a GPU's side, gradients are assumed to be there until the first reduction.
  DeviceUnits(const Group& group, std::vector<Side*> sides);

  // Loads the unit to the device that last reduced gradients. Throws ValueError if a residual is not a contiguous
  // float32 tensor on the CPU.
  void load(const SavedUnit& unit);
  // Moves loaded units to this side. Called before each reduction there.
  void bring_loaded_to(Side& side);

  std::vector<SavedUnit> states();  // of all devices
  // Returns states() of a group that ends, see Side::run_at_end(); after undo_step(), if `undo`.
  std::vector<SavedUnit> states_at_end(bool undo);
  // See UnitStates.
  void count_dropped(int64_t num_units);
  // Runs `action` on all devices that have units. It owns what it refers to: a signal may end the wait for it. name:
  // for profilers.
  void run_everywhere(const char* name, const std::function<void(Communicator&)>& action);

 private:
  void forget_those_gone();
  void run(Side& side, const char* name, const std::function<void(Communicator&)>& action);

  const Group& group_;
  const std::vector<Side*> sides_;
  GoneOwners gone_;

  std::mutex mutex_;     // guards the members below
  Side* reduces_;        // the side of the last reduction
  bool loaded_ = false;  // units were loaded since that reduction
};

}  // namespace isthmus::torch_backend
