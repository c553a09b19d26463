// Codec auto, and quant with bits=0: which codec each unit gets, from what was measured. See docs/auto.md.
#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>

#include "auto/chooser.h"
#include "auto/unit_choice.h"
#include "communicator/plan/reduction_plan.h"
#include "communicator/tier_set.h"
#include "isthmus/options.h"
#include "isthmus/stats.h"

namespace isthmus {

// Measures links and codecs when the first unit asks, chooses for each unit, and decides again every error_interval
// reductions of it. All ranks decide alike. Called by the thread that calls collectives.
class CodecChooser {
 public:
  // phase: of the communicator. All outlive it.
  CodecChooser(const TierSet& tiers, Device& device, const Options& options, std::atomic<const char*>& phase)
      : tiers_(tiers), device_(device), options_(options), phase_(phase) {}

  // Whether the options leave the choice to it; otherwise they apply as they are.
  bool chooses() const;

  // Speeds of links and codecs for sums of this type, equal on all ranks. The first call measures them, collectively.
  Measurements measure(DataType dtype);

  // exposed_share(hash): the share of the time of a unit's reductions, by UnitKey::hash(), that the caller has waited
  // since the last call, on this rank. Nothing: unknown, and all of it counts. Called from within reductions.
  void set_exposed_share(std::function<std::optional<double>(uint64_t unit_hash)> exposed_share) {
    exposed_share_ = std::move(exposed_share);
  }

  // The options for the unit's reductions from this one on, its stage apart. tail: the stream of the reduction. All
  // ranks call this at the same reduction of the unit; where a decision is due it is collective.
  const Options& wanted_settings(Unit& unit, const UnitKey& key, Stream tail);

  // Records the time of a completed reduction.
  static void observe(const ReductionPlan& plan, const CollectiveStats& counters);

  // The path of one reduction, the world backend's included, independent of its unit.
  static Choice choose_path(const Measurements& measured, const UnitFacts& facts, const Options& options) {
    return choose(measured, facts, options);
  }

 private:
  void choose_for(Unit& unit, const UnitKey& key, Stream tail);
  void exchange_measurements(Unit& unit);
  static void follow_exposure(UnitChoice& unit, double exposed_share);
  void watch_links(UnitChoice& unit, double seconds_over_model);

  const TierSet& tiers_;
  Device& device_;
  const Options& options_;
  std::atomic<const char*>& phase_;
  std::function<std::optional<double>(uint64_t)> exposed_share_;
  GroupMeasurements group_;
};

}  // namespace isthmus
