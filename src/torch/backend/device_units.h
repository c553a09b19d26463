// The state of a group's units on all its devices, for checkpoints and loss scales.
#pragma once

#include <functional>
#include <optional>
#include <utility>
#include <vector>

#include "isthmus/communicator.h"
#include "torch/base/group.h"
#include "torch/sides/side.h"
#include "torch/units/unit_registry.h"

namespace isthmus::torch_backend {

// The units that are meant; nothing: all of the group.
using UnitHandles = std::optional<std::vector<UnitHandlePtr>>;

// The threads that make the collectives call these methods in program order with the collectives. Each method blocks
// until it is done. Without two tiers there are no units, and the methods do nothing. No method is collective, but all
// ranks make the same calls.
class DeviceUnits {
 public:
  // sides: the CPU's first.
  DeviceUnits(const Group& group, std::vector<Side*> sides, UnitRegistry& registry)
      : group_(group), sides_(std::move(sides)), registry_(registry) {}

  // Keeps the state for the unit that will be reduced under its key. Throws Error if it does not fit the group.
  void load(UnitState state);
  void clear(const UnitHandles& units);
  void scale_residuals(double factor, const UnitHandles& units);  // see UnitStates

  std::vector<UnitState> states();  // on all devices, and loaded ones
  // Returns states() of a group that ends, see Side::run_at_end(); after undo_step(), if `undo`.
  std::vector<UnitState> states_at_end(bool undo);
  // See UnitStates.
  void count_dropped(int64_t num_units);
  // Runs `action` on all devices that have units, for those that are meant. It owns what it refers to: a signal may end
  // the wait for it. name: for profilers.
  void run_everywhere(const char* name, const UnitHandles& units,
                      const std::function<void(UnitStates&, const Units&)>& action);

 private:
  void run(Side& side, const char* name, const std::function<void(Communicator&)>& action);

  const Group& group_;
  const std::vector<Side*> sides_;
  UnitRegistry& registry_;
};

}  // namespace isthmus::torch_backend
