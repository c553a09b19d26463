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
#include "communicator/units/unit_table.h"
#include "isthmus/options.h"
#include "isthmus/unit.h"

namespace isthmus {

// How one reduction is done, alike on all ranks. It points to objects of planner, units and caller, and is valid until
// the collective ends.
struct ReductionPlan {
  const UnitKey* key = nullptr;
  Unit* unit = nullptr;  // null: the reduction is plain and has no state
  Codecs codecs;
  std::optional<Reason> why_exact = {};  // nothing: the codec is lossy
  bool drains = false;                   // sends the unit's residuals and leaves none
  bool measures = false;                 // whether the codec's error is measured
  uint64_t hash = 0;                     // of the unit
  uint64_t step = 0;
  DeviceContext* contexts = nullptr;  // the unit's, by PacketUse; on a GPU
  double scale = 1;                   // by which the sum of pieces is multiplied

  bool is_lossy() const { return !why_exact; }
  bool has_residual() const { return unit != nullptr && unit->has_residual(); }
};

// Owns the codecs. The thread that calls collectives calls it.
class ReductionPlanner {
 public:
  // All arguments outlive it. Throws OptionError if the options do not fit the device, or the settings the codec.
  ReductionPlanner(const TierSet& tiers, Device& device, const Options& options, UnitTable& units);

  // The plan refers to the reduction's key. on_all: see UnitTable::find_or_add().
  ReductionPlan plan(const Run& run, const Reduction& reduction, const SetOnAllRanks& on_all);

  // Throws Error if the reduction cannot be part of the graph that is being captured on `caller`.
  void check_capture(const Reduction& reduction, Stream caller) const;

 private:
  void plan_for_unit(const UnitKey& key, int num_summands, bool in_graph, ReductionPlan& plan);
  void follow_start(Unit& unit, const UnitKey& key, int num_summands);
  std::optional<Reason> exact_reason(const Reduction& reduction) const;
  Codec& codec(const Options& options, DataType dtype, int num_summands);
  Codecs plain_codecs(DataType dtype, int num_summands);
  bool flat() const { return options_.is_flat(); }

  const TierSet& tiers_;
  Device& device_;
  const Options& options_;
  const Options plain_options_;
  UnitTable& units_;
  std::map<std::tuple<std::string, DataType, int>, std::unique_ptr<Codec>> codecs_;  // by name, type and summands
  std::unique_ptr<TagcFlat> tagc_flat_;                                              // null: codec none, or two tiers
};

}  // namespace isthmus
