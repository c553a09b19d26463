// The units that one communicator has reduced or gathered, and that somebody holds.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <vector>

#include "communicator/run/tier_set.h"
#include "communicator/units/unit.h"

namespace isthmus {

// Throws Error unless a group of these nodes, with these options, can load the state.
void check_loadable(const NodeMap& map, const Options& options, const UnitState& state);

// Refers to units weakly. Residuals are always finite.
class GroupUnits final : public UnitStates {
 public:
  // All arguments outlive it.
  GroupUnits(const TierSet& tiers, Device& device, const Options& options, Statistics& statistics)
      : tiers_(tiers), device_(device), options_(options), statistics_(statistics) {}

  // Throws Error if the unit belongs to another communicator.
  void require_own(const Unit& unit) const;
  // Called before each collective of a unit, which require_own() has passed.
  void take(const UnitPtr& unit);
  // Called before each lossy reduction of the unit: gives it a step and, on a GPU, contexts of packets.
  void give_state(Unit& unit);
  // Gives the unit residuals of zeros. Throws Error that names unit and bytes if memory is lacking.
  void give_residuals(Unit& unit);

  std::vector<UnitState> states() const override;
  UnitPtr load(UnitState state) override;
  void scale_residuals(double factor, const Units& units) override;
  void begin_step(std::optional<uint64_t> step, const Units& units) override;
  int64_t undo_step(const Units& units) override;
  int64_t skip_step(const Units& units) override;
  void count_dropped(int64_t num_units) override { statistics_.add(&Stats::dropped_residuals, num_units); }

 private:
  std::vector<UnitPtr> with_state(const Units& units) const;
  void bring(Unit& unit);
  void keep(Unit& unit);

  const TierSet& tiers_;
  Device& device_;
  const Options& options_;
  Statistics& statistics_;
  std::optional<uint64_t> first_step_;  // of new units, if begin_step() has said so
  bool has_begun_ = false;              // begin_step() was called
  std::vector<std::weak_ptr<Unit>> units_;
  size_t looked_through_at_ = 16;  // how many there may be before the dead are sorted out
};

}  // namespace isthmus
