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
  PlannedUnitStates(const TierSet& tiers, Device& device, ReductionPlanner& planner, Statistics& statistics)
      : tiers_(tiers), device_(device), planner_(planner), statistics_(statistics) {}

  std::vector<UnitState> states() const override { return planner_.units().states(); }
  void load(const UnitState& state) override;
  void clear(const Owners& owners) override;
  void forget(const std::set<uint64_t>& owners) override;
  void scale_residuals(double factor, const Owners& owners) override;
  void count_step(const Owners& owners) override { end_step(/*skipped=*/false, owners); }
  void count_skipped_step(const Owners& owners) override { end_step(/*skipped=*/true, owners); }
  void begin_step(uint64_t step) override { planner_.units().begin_step(step); }
  void undo_step() override;
  void count_dropped(int64_t num_units) override { statistics_.count_dropped(num_units); }

 private:
  void end_step(bool skipped, const Owners& owners);
  void show_memory();

  const TierSet& tiers_;
  Device& device_;
  ReductionPlanner& planner_;
  Statistics& statistics_;
};

}  // namespace isthmus
