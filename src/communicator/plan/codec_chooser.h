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

// Measures links and codecs when the first unit asks, chooses for each unit, and decides anew every error_interval
// reductions of it. All of that is the same on all ranks. From the thread that calls collectives.
class CodecChooser {
 public:
  // phase: of the communicator. All outlive it.
  CodecChooser(const TierSet& tiers, Device& device, const Options& options, std::atomic<const char*>& phase)
      : tiers_(tiers), device_(device), options_(options), phase_(phase) {}

  // Whether the options leave the choice to it; else everything is done with the options as they are.
  bool chooses() const;

  // How fast links and codecs are for sums of this type; measured first, if that is not done yet. Equal on all ranks.
  // Collective where it measures.
  Measurements measure(DataType dtype);

  // exposed_share(hash): which share of a unit's reductions, by UnitKey::hash(), the caller has waited for since the
  // last time, on this rank; nothing: unknown, and taken for all of it. Called from within reductions.
  void set_exposed_share(std::function<std::optional<double>(uint64_t unit_hash)> exposed_share) {
    exposed_share_ = std::move(exposed_share);
  }

  // What the unit's reductions are made with, its stage apart, from the one on that comes now. tail: the stream of the
  // reduction. All ranks come here at the same reduction of the unit, and send something where a decision is due.
  const Options& wanted_settings(Unit& unit, const UnitKey& key, Stream tail);

  // Takes note of the time of a reduction that is done.
  static void observe(const ReductionPlan& plan, const CollectiveStats& counters);

  // The path of one reduction, the world backend's included, whatever is known of its unit.
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
