// Decides how each reduction is done, only from values that are equal on all ranks: options, keys and earlier
// decisions.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <tuple>

#include "codec/tagc/flat.h"
#include "communicator/run/run.h"
#include "communicator/run/tier_set.h"
#include "communicator/units/reduction_plan.h"
#include "communicator/units/unit_table.h"
#include "isthmus/options.h"
#include "isthmus/unit.h"

namespace isthmus {

// Owns the units and their codecs. The thread that calls collectives calls it.
class ReductionPlanner {
 public:
  // All arguments outlive it. Throws OptionError if the options do not fit the device, or the settings the codec.
  ReductionPlanner(const TierSet& tiers, Device& device, const Options& options);

  // The plan refers to the reduction's key. on_all: see UnitTable::find_or_add().
  ReductionPlan plan(const Run& run, const Reduction& reduction, const SetOnAllRanks& on_all);
  // Ends a plan, once all its work has been enqueued.
  void finish(const ReductionPlan& plan);

  // Throws Error if the reduction cannot be part of the graph that is being captured on `caller`.
  void check_capture(const Reduction& reduction, Stream caller) const;

  UnitTable& units() { return units_; }
  const UnitTable& units() const { return units_; }
  // Copies a state into the unit with its key. See UnitStates.
  void load(const UnitState& state);

 private:
  ResidualSizes residual_sizes(const UnitKey& key) const;  // for a unit whose codec keeps residuals
  ResidualStretches residual_stretches(const UnitKey& key) const;
  void follow_key(Unit& unit, const UnitKey& key, bool keeps_residual);
  bool may_drain(const Run& run, const Reduction& reduction) const;
  void plan_for_unit(const Run& run, const UnitKey& key, int num_summands, ReductionPlan& plan);
  void follow_start(Unit& unit, const UnitKey& key, int num_summands);
  std::optional<Reason> exact_reason(const Reduction& reduction) const;
  Codec& codec(const Options& settings, DataType dtype, int num_summands);
  Codec& plain_codec(DataType dtype, int num_summands);
  TagcFlat& tagc_flat(const Options& settings);
  bool flat() const { return options_.is_flat(); }

  const TierSet& tiers_;
  Device& device_;
  const Options& options_;
  UnitTable units_;
  std::map<std::tuple<std::string, DataType, int>, std::unique_ptr<Codec>> codecs_;
  std::map<std::string, std::unique_ptr<TagcFlat>> tagc_flat_;  // by settings
  uint64_t num_reductions_ = 0;                                 // the step in the packets of plain reductions
};

}  // namespace isthmus
