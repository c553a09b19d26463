#include "communicator/plan/reduction_planner.h"

#include <algorithm>
#include <cmath>

#include "communicator/plan/policy.h"
#include "isthmus/error.h"

namespace isthmus {
namespace {

// The part of a unit's step that counts steps. See UnitStates::begin_step().
uint64_t steps_in(uint64_t step) { return step & ((uint64_t{1} << UnitStates::kStepBits) - 1); }

}  // namespace

ReductionPlanner::ReductionPlanner(const TierSet& tiers, Device& device, const Options& options)
    : tiers_(tiers), device_(device), options_(options), units_(device, options.max_units) {
  ISTHMUS_CHECK(OptionError, !flat() || options_.codec == "tagc" || !options_.is_lossy(),
                "option tiers=\"flat\": expected codec tagc or none, not ", options_.codec);
  if (!flat()) {
    codec(options_, DataType::kFloat32, 1);  // throws if the settings do not fit the codec
  } else if (options_.codec == "tagc") {
    tagc_flat(options_);
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
  if (!plan.why_exact) {
    const bool can_ask = device_.capture(run.tail()) == 0;
    plan.unit = units_.find_or_add(key, num_reductions_, can_ask ? on_all : SetOnAllRanks());
    plan.why_exact = plan.unit == nullptr ? std::optional(Reason::kTooManyUnits) : std::nullopt;
  } else if (may_drain(run, reduction)) {
    plan.unit = units_.find_with_residual(key, num_reductions_);
  }
  if (plan.unit != nullptr) {
    plan_for_unit(run, key, num_summands, plan);
  } else {
    plan.hash = key.hash();
    plan.step = num_reductions_;
    plan.codec = &plain_codec(key.dtype, num_summands);
    plan.result_codec = &plain_codec(key.dtype, 1);  // nothing is added to a result
  }
  ++num_reductions_;
  return plan;
}

// Whether an exact reduction can send the residual along. A graph cannot: it would hold the memory that is freed.
bool ReductionPlanner::may_drain(const Run& run, const Reduction& reduction) const {
  return !flat() && reduction.unit.num_elements > 0 && reduction.scale != 0 && std::isfinite(reduction.scale) &&
         device_.capture(run.tail()) == 0;
}

void ReductionPlanner::plan_for_unit(const Run& run, const UnitKey& key, int num_summands, ReductionPlan& plan) {
  Unit& unit = *plan.unit;
  follow_start(unit, key, num_summands);
  unit.follow_scale(device_, plan.scale);
  plan.step = unit.step++;
  plan.contexts = unit.contexts.get();
  plan.codec = unit.codecs.pieces;
  plan.result_codec = unit.codecs.result;
  plan.tagc_flat = unit.codecs.flat;
  const bool is_coded = plan.is_lossy();
  const bool keeps_residual = is_coded && (flat() ? plan.tagc_flat != nullptr : plan.codec->keeps_residual());
  const bool must_not_keep = keeps_residual && !key.may_keep_residual;
  follow_key(unit, key, keeps_residual && key.may_keep_residual);
  plan.hash = unit.hash;
  plan.drains = !keeps_residual && unit.has_residual() && !flat();
  if (plan.drains || must_not_keep || !is_coded) {
    plan.codec = &plain_codec(key.dtype, num_summands);
    plan.result_codec = &plain_codec(key.dtype, 1);
    plan.tagc_flat = nullptr;
    plan.why_exact = plan.drains     ? Reason::kTakesResidual  // once
                     : must_not_keep ? Reason::kWhoseResidual
                                     : plan.why_exact;
  } else if (*unit.is_dense) {
    plan.why_exact = Reason::kDenseStart;
  }
  plan.measures = plan.is_lossy() && !flat() && options_.error_interval > 0 && device_.capture(run.tail()) == 0 &&
                  steps_in(plan.step) % static_cast<uint64_t>(options_.error_interval) == 0;
}

// Moves the unit's residuals to the parameters that this key reduces.
void ReductionPlanner::follow_key(Unit& unit, const UnitKey& key, bool keeps_residual) {
  if (key.sections != nullptr && unit.key.layout != key.layout) {
    units_.follow_key(unit, key, residual_stretches(unit.key), residual_stretches(key), residual_sizes(key),
                      keeps_residual);
  }
  if (keeps_residual && !unit.has_residual()) {
    units_.add_residuals(unit, key, residual_sizes(key));
  }
}

void ReductionPlanner::finish(const ReductionPlan& plan) {
  if (plan.drains) {
    units_.drop_residuals(*plan.unit);
  }
}

// Chooses the unit's codecs if they must change.
void ReductionPlanner::follow_start(Unit& unit, const UnitKey& key, int num_summands) {
  const bool is_dense = steps_in(unit.step) < static_cast<uint64_t>(options_.dense_steps);
  if (unit.is_dense == is_dense) {
    return;
  }
  unit.is_dense = is_dense;
  unit.settings = options_;
  if (is_dense) {
    unit.settings.codec = "none";
  }
  unit.codecs = {};
  if (flat()) {
    unit.codecs.flat = is_dense ? nullptr : &tagc_flat(unit.settings);
    unit.codecs.pieces = unit.codecs.result = &plain_codec(key.dtype, num_summands);
  } else if (!unit.settings.is_lossy()) {
    unit.codecs.pieces = &plain_codec(key.dtype, num_summands);
    unit.codecs.result = &plain_codec(key.dtype, 1);
  } else {
    unit.codecs.pieces = unit.codecs.result = &codec(unit.settings, key.dtype, num_summands);
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
  if (reduction.scale == 0 || !std::isfinite(reduction.scale)) {
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

ResidualSizes ReductionPlanner::residual_sizes(const UnitKey& key) const {
  const bool is_all_reduce = key.collective == Collective::kAllReduce;
  if (tiers_.num_nodes() == 1 || (flat() && is_all_reduce)) {
    return {};
  }
  const int64_t chunk = tiers_.chunk_elements(key.num_elements);
  return {flat() ? key.num_elements : (tiers_.num_nodes() - 1) * chunk, is_all_reduce ? chunk : 0};
}

// Sections are as long as the rows, which GradientRecogniser checks.
ResidualStretches ReductionPlanner::residual_stretches(const UnitKey& key) const {
  ResidualStretches stretches;
  if (key.sections == nullptr) {
    return stretches;
  }
  const ResidualSizes sizes = residual_sizes(key);
  const int64_t row = key.sections->row_elements();
  if (key.collective == Collective::kReduceScatter) {
    for (int64_t piece = 0; row > 0 && piece < sizes.pieces_elements / row; ++piece) {
      stretches.pieces.push_back({piece, 0, row, piece * row});
    }
    return stretches;
  }
  const int64_t chunk = tiers_.chunk_elements(key.num_elements);
  const auto stretch_of = [&](int owner, int64_t offset) {
    const int64_t begin = std::min(owner * chunk, row);
    return ResidualStretch{0, begin, std::min(chunk, row - begin), offset};
  };
  int64_t offset = 0;
  for (int node = 0; node < tiers_.num_nodes() && offset < sizes.pieces_elements; ++node) {
    if (node != tiers_.node()) {
      stretches.pieces.push_back(stretch_of(tiers_.map().rank(node, tiers_.map().local_index(tiers_.rank())), offset));
      offset += chunk;
    }
  }
  if (sizes.result_elements > 0) {
    stretches.result.push_back(stretch_of(tiers_.rank(), 0));
  }
  return stretches;
}

void ReductionPlanner::load(const UnitState& state) { units_.load(state, residual_sizes(state.key), num_reductions_); }

Codec& ReductionPlanner::codec(const Options& settings, DataType dtype, int num_summands) {
  std::unique_ptr<Codec>& codec = codecs_[{settings.codec_settings(), dtype, num_summands}];
  if (codec == nullptr) {
    codec = device_.make_codec(settings.codec, settings, dtype, num_summands);
  }
  return *codec;
}

Codec& ReductionPlanner::plain_codec(DataType dtype, int num_summands) {
  std::unique_ptr<Codec>& codec = codecs_[{"none", dtype, num_summands}];
  if (codec == nullptr) {
    codec = device_.make_codec("none", options_, dtype, num_summands);
  }
  return *codec;
}

TagcFlat& ReductionPlanner::tagc_flat(const Options& settings) {
  std::unique_ptr<TagcFlat>& tagc_flat = tagc_flat_[settings.codec_settings()];
  if (tagc_flat == nullptr) {
    tagc_flat = make_tagc_flat(settings, device_);
  }
  return *tagc_flat;
}

}  // namespace isthmus
