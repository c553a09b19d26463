// Decides how a unit is reduced, only from values that are equal on all ranks: options, keys and earlier
// decisions.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <tuple>

#include "communicator/run/run.h"
#include "communicator/run/tier_set.h"
#include "communicator/units/group_units.h"
#include "isthmus/options.h"
#include "isthmus/unit.h"
#include "kernels/tagc/flat.h"

namespace isthmus {

// How one reduction is done, alike on all ranks. It points to objects of planner, units and caller, and is valid until
// the collective ends.
struct ReductionPlan {
  Unit* unit = nullptr;
  bool has_state = false;  // uses the unit's step, contexts and residual; if not, it is plain
  Codecs codecs;
  std::optional<Reason> why_exact = {};  // nothing: the codec is lossy
  bool sends_residual = false;           // sends the unit's residuals and leaves none
  bool measures = false;                 // whether the codec's error is measured
  uint64_t hash = 0;                     // of the unit, and of the parameters that have gradients
  uint64_t step = 0;
  double scale = 1;  // by which the sum of pieces is multiplied

  bool is_lossy() const { return !why_exact; }
  bool has_residual() const { return has_state && unit->has_residual(); }
};

// Owns the codecs. The thread that calls collectives calls it.
class ReductionPlanner {
 public:
  // All arguments outlive it. Throws OptionError if the options do not fit the device, or the settings the codec.
  ReductionPlanner(const TierSet& tiers, Device& device, const Options& options, GroupUnits& units);

  // The plan refers to the reduction's unit.
  ReductionPlan plan(const Run& run, const Reduction& reduction);

  // Throws Error if the reduction cannot be part of the graph that is being captured on `caller`.
  void check_capture(const Reduction& reduction, Stream caller) const;

 private:
  // What a unit is asked once, and once more at the end of its dense start.
  void decide(Unit& unit);
  std::optional<Reason> why_always_exact(const Unit& unit) const;
  // Why this reduction is exact.
  std::optional<Reason> why_exact(const Reduction& reduction) const;
  void plan_with_state(ReductionPlan& plan);
  uint64_t hash_of(const Reduction& reduction) const;  // what its packets carry
  double divisor(DataType dtype) const;                // of sums within the node
  int num_summands(DataType dtype) const;
  Codec& codec(const Options& options, DataType dtype, int num_summands);
  Codecs plain_codecs(DataType dtype, int num_summands);
  bool flat() const { return options_.is_flat(); }

  const TierSet& tiers_;
  Device& device_;
  const Options& options_;
  const Options plain_options_;
  GroupUnits& units_;
  uint64_t num_reductions_ = 0;                                                      // equal on all ranks
  std::map<std::tuple<std::string, DataType, int>, std::unique_ptr<Codec>> codecs_;  // by name, type and summands
  std::unique_ptr<TagcFlat> tagc_flat_;                                              // null: codec none, or two tiers
};

}  // namespace isthmus
