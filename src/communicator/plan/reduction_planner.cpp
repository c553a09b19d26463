#include "communicator/plan/reduction_planner.h"

#include <algorithm>
#include <cmath>

#include "communicator/plan/policy.h"
#include "isthmus/error.h"

namespace isthmus {
namespace {

// The part of a unit's step that counts steps. See UnitStates::begin_step().
uint64_t steps_in(uint64_t step) { return step & ((uint64_t{1} << UnitStates::kStepBits) - 1); }

bool has_good_scale(const Reduction& reduction) { return reduction.scale != 0 && std::isfinite(reduction.scale); }

Options plain(Options options) {
  options.codec = "none";
  return options;
}

}  // namespace

ReductionPlanner::ReductionPlanner(const TierSet& tiers, Device& device, const Options& options, UnitTable& units)
    : tiers_(tiers), device_(device), options_(options), plain_options_(plain(options)), units_(units) {
  ISTHMUS_CHECK(OptionError, !flat() || options_.codec == "tagc" || !options_.is_lossy(),
                "option tiers=\"flat\": expected codec tagc or none, not ", options_.codec);
  if (!flat()) {
    codec(options_, DataType::kFloat32, 1);  // throws if the settings do not fit the codec
  } else if (options_.codec == "tagc") {
    tagc_flat_ = make_tagc_flat(options_, device_);
  }
}

ReductionPlan ReductionPlanner::plan(const Run& run, const Reduction& reduction, const SetOnAllRanks& on_all) {
  const UnitKey& key = reduction.unit;
  const double divisor = flat() ? 1 : tiers_.piece_type(device_, key.dtype).divisor;
  const int num_summands = divisor == 1 ? tiers_.ranks_per_node() : 1;  // with a divisor the sums are scaled already
  ReductionPlan plan;
  plan.key = &key;
  plan.scale = reduction.scale * divisor;
  plan.why_exact = exact_reason(reduction);
  const bool in_graph = device_.capture(run.tail()) != 0;
  if (!plan.why_exact) {
    plan.unit = units_.find_or_add(key, in_graph ? SetOnAllRanks() : on_all);
    plan.why_exact = plan.unit == nullptr ? std::optional(Reason::kTooManyUnits) : std::nullopt;
  } else if (!flat() && !in_graph && key.num_elements > 0 && has_good_scale(reduction)) {
    // It may send the residual along. A graph cannot: it would hold the memory that is freed.
    plan.unit = units_.find_with_residual(key);
  }
  if (plan.unit != nullptr) {
    plan_for_unit(key, num_summands, in_graph, plan);
  } else {
    plan.hash = key.hash();
    plan.step = units_.now();
    plan.codecs = plain_codecs(key.dtype, num_summands);
  }
  units_.count_reduction();
  return plan;
}

void ReductionPlanner::plan_for_unit(const UnitKey& key, int num_summands, bool in_graph, ReductionPlan& plan) {
  Unit& unit = *plan.unit;
  follow_start(unit, key, num_summands);
  unit.follow_scale(device_, plan.scale);
  plan.step = unit.step++;
  plan.contexts = unit.contexts.get();
  plan.codecs = unit.codecs;
  const bool is_coded = plan.is_lossy();
  const bool keeps_residual = is_coded && (flat() ? plan.codecs.flat != nullptr : plan.codecs.pieces->keeps_residual());
  const bool must_not_keep = keeps_residual && !key.may_keep_residual;
  units_.follow_key(unit, key, keeps_residual && key.may_keep_residual);
  plan.hash = unit.hash;
  plan.drains = !keeps_residual && unit.has_residual() && !flat();
  if (plan.drains || must_not_keep || !is_coded) {
    plan.codecs = plain_codecs(key.dtype, num_summands);
    plan.why_exact = plan.drains     ? Reason::kTakesResidual  // once
                     : must_not_keep ? Reason::kWhoseResidual
                                     : plan.why_exact;
  } else if (*unit.is_dense) {
    plan.why_exact = Reason::kDenseStart;
  }
  plan.measures = plan.is_lossy() && !flat() && options_.error_interval > 0 && !in_graph &&
                  steps_in(plan.step) % static_cast<uint64_t>(options_.error_interval) == 0;
}

// Chooses the unit's codecs if they must change.
void ReductionPlanner::follow_start(Unit& unit, const UnitKey& key, int num_summands) {
  const bool is_dense = steps_in(unit.step) < static_cast<uint64_t>(options_.dense_steps);
  if (unit.is_dense == is_dense) {
    return;
  }
  unit.is_dense = is_dense;
  unit.settings = is_dense ? &plain_options_ : &options_;
  if (flat() || !unit.settings->is_lossy()) {
    unit.codecs = plain_codecs(key.dtype, num_summands);
    unit.codecs.flat = is_dense ? nullptr : tagc_flat_.get();
  } else {
    unit.codecs.pieces = unit.codecs.result = &codec(options_, key.dtype, num_summands);
  }
  if (unit.error == nullptr) {
    unit.error = device_.make_squared_error();
  }
}

// The first reason that holds, in this order; nothing: there is none.
std::optional<Reason> ReductionPlanner::exact_reason(const Reduction& reduction) const {
  const UnitKey& key = reduction.unit;
  if (!options_.is_lossy()) {
    return Reason::kCodecNone;
  }
  if (reduction.why_exact) {
    return reduction.why_exact;
  }
  if (tiers_.num_nodes() == 1) {
    return Reason::kOneNode;
  }
  if (key.dtype == DataType::kFloat64) {
    return Reason::kFloat64;
  }
  if (key.num_elements == 0) {
    return Reason::kEmpty;
  }
  if (!has_good_scale(reduction)) {
    return Reason::kBadScale;
  }
  if (flat() && key.collective == Collective::kAllReduce) {
    return Reason::kFlatAllReduce;
  }
  return why_policy_is_exact(options_, key.name, key.num_elements);
}

// Refuses what a graph would repeat at every replay: a new unit, whose residual would begin with zeros, a unit with a
// new scale, whose residual would be scaled, and a step in a single tier, which seeds its sketch.
void ReductionPlanner::check_capture(const Reduction& reduction, Stream caller) const {
  if (device_.capture(caller) == 0 || exact_reason(reduction)) {
    return;
  }
  const UnitKey& key = reduction.unit;
  ISTHMUS_CHECK(Error, !flat(), "unit \"", key.name,
                "\" is captured into a graph: expected tiers=\"two\", not \"flat\"");
  const Unit* unit = units_.find(key);
  const auto first_steps = static_cast<uint64_t>(options_.dense_steps);
  ISTHMUS_CHECK(Error, unit == nullptr || steps_in(unit->step) >= first_steps, "unit \"", key.name,
                "\" is captured into a graph after ", unit != nullptr ? steps_in(unit->step) : 0,
                " reductions: expected ", first_steps, " before (dense_steps)");
  if (unit == nullptr) {
    ISTHMUS_CHECK(Error, units_.full(), "unit \"", key.name,
                  "\" is reduced for the first time while a graph is captured: expected a step before");
    return;
  }
  ISTHMUS_CHECK(Error, unit->key.layout == key.layout, "unit \"", key.name,
                "\" is reduced with other parameters while a graph is captured than before: expected the same");
  const double scale_before = unit->scale / tiers_.piece_type(device_, key.dtype).divisor;
  ISTHMUS_CHECK(Error, unit->scale == 0 || scale_before == reduction.scale, "unit \"", key.name,
                "\" is reduced with scale ", reduction.scale, " while a graph is captured, and was with ", scale_before,
                " before: expected one scale");
}

Codec& ReductionPlanner::codec(const Options& options, DataType dtype, int num_summands) {
  std::unique_ptr<Codec>& codec = codecs_[{options.codec, dtype, num_summands}];
  if (codec == nullptr) {
    codec = device_.make_codec(options.codec, options, dtype, num_summands);
  }
  return *codec;
}

// Nothing is added to a result.
Codecs ReductionPlanner::plain_codecs(DataType dtype, int num_summands) {
  return {&codec(plain_options_, dtype, num_summands), &codec(plain_options_, dtype, 1)};
}

}  // namespace isthmus
