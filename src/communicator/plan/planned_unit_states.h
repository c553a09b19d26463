// The state of the units of a communicator's planner.
#pragma once

#include <vector>

#include "communicator/plan/reduction_planner.h"
#include "communicator/run/statistics.h"
#include "communicator/run/tier_set.h"
#include "isthmus/unit.h"

namespace isthmus {

class PlannedUnitStates final : public UnitStates {
 public:
  // All arguments outlive this object.
  PlannedUnitStates(const TierSet& tiers, ReductionPlanner& planner, Statistics& statistics)
      : tiers_(tiers), planner_(planner), statistics_(statistics) {}

  std::vector<UnitState> states() const override { return planner_.units().states(); }
  void load(const UnitState& state) override;
  void clear(const Owners& owners) override;
  void forget(const std::set<uint64_t>& owners) override;
  void scale_residuals(double factor, const Owners& owners) override;
  void begin_step(std::optional<uint64_t> step, const Owners& owners) override {
    planner_.units().begin_step(step, owners);
  }
  int64_t undo_step(const Owners& owners) override;
  int64_t skip_step(const Owners& owners) override;
  void count_dropped(int64_t num_units) override { statistics_.count_dropped(num_units); }

 private:
  void show_memory();

  const TierSet& tiers_;
  ReductionPlanner& planner_;
  Statistics& statistics_;
};

}  // namespace isthmus
