// The state of a group's units on all its devices, for checkpoints and loss scales.
#pragma once

#include <ATen/core/Tensor.h>

#include <functional>
#include <mutex>
#include <vector>

#include "isthmus/communicator.h"
#include "torch/backend/group.h"
#include "torch/sides/side.h"

namespace isthmus::torch_backend {

// A unit's state with memory of its own. See UnitState.
struct SavedUnit {
  UnitKey key;
  uint64_t step = 0;
  double scale = 0;
  at::Tensor residual;         // float32, 1-D; undefined: none
  at::Tensor result_residual;  // the same
};

// Called in program order with the collectives, by the threads that call those; each method blocks until it is done.
// Without two tiers there are no units, and methods do nothing. Not collective, but all ranks make the same calls.
// `mutex_` is held for moments; no other lock is taken under it.
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
  void clear();
  void scale_residuals(double factor);
  void count_step();
  void count_skipped_step();

 private:
  void run(Side& side, const char* name, const std::function<void(Communicator&)>& action);
  void run_everywhere(const char* name, const std::function<void(Communicator&)>& action);

  const Group& group_;
  const std::vector<Side*> sides_;

  std::mutex mutex_;     // guards what follows
  Side* reduces_;        // that of the last reduction
  bool loaded_ = false;  // units, since then
};

}  // namespace isthmus::torch_backend
