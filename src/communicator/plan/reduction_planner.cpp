#include "communicator/plan/reduction_planner.h"

#include <cmath>

#include "communicator/plan/policy.h"
#include "isthmus/error.h"

namespace isthmus {

ReductionPlanner::ReductionPlanner(const TierSet& tiers, Device& device, const Options& options)
    : tiers_(tiers), device_(device), options_(options), units_(device, options.max_units) {
  ISTHMUS_CHECK(OptionError, !flat() || options_.codec == "tagc" || options_.codec == "none",
                "option tiers=\"flat\": expected codec tagc or none, not ", options_.codec);
  if (!flat()) {
    codec(options_, DataType::kFloat32, 1);  // throws where its settings do not fit
  } else if (flat() && options_.codec == "tagc") {
    tagc_flat(options_);
  }
}

ReductionPlan ReductionPlanner::plan(const Run& run, const UnitKey& key, double scale, const char* why_exact) {
  const double divisor = flat() ? 1 : tiers_.piece_type(device_, key.dtype).divisor;
  const int num_summands = divisor == 1 ? tiers_.ranks_per_node() : 1;  // others have been divided already
  ReductionPlan plan;
  plan.key = &key;
  plan.scale = scale * divisor;
  plan.why_exact = exact_reason(key, scale, why_exact);
  if (plan.why_exact == nullptr) {
    plan.unit = units_.find_or_add(key);
    plan.why_exact = plan.unit == nullptr ? "more than max_units units" : nullptr;
  }
  if (plan.unit != nullptr) {
    plan_for_unit(run, key, num_summands, plan);
  } else {
    plan.hash = key.hash();
    plan.step = num_reductions_;
    plan.codec = &plain_codec(key.dtype, num_summands);
    plan.result_codec = &plain_codec(key.dtype, 1);  // a result is no sum to which more is added
  }
  ++num_reductions_;
  return plan;
}

void ReductionPlanner::plan_for_unit(const Run& run, const UnitKey& key, int num_summands, ReductionPlan& plan) {
  Unit& unit = *plan.unit;
  follow_start(unit, key, num_summands);
  unit.follow_scale(device_, plan.scale);
  plan.hash = unit.hash;
  plan.step = unit.step++;
  plan.contexts = unit.contexts.get();
  plan.codec = unit.codecs.pieces;
  plan.result_codec = unit.codecs.result;
  plan.tagc_flat = unit.codecs.flat;
  const bool keeps_residual = flat() ? plan.tagc_flat != nullptr : plan.codec->keeps_residual();
  const bool must_not_keep = keeps_residual && !key.may_keep_residual;
  if (keeps_residual && key.may_keep_residual && !unit.has_residual()) {
    units_.add_residuals(unit, key, residual_sizes(key));
  }
  plan.drains = !keeps_residual && unit.has_residual() && !flat();
  if (plan.drains || must_not_keep) {
    plan.codec = &plain_codec(key.dtype, num_summands);
    plan.result_codec = &plain_codec(key.dtype, 1);
    plan.tagc_flat = nullptr;
    plan.why_exact = must_not_keep ? kWhoseResidual : "takes the residual along";  // the latter once
  } else if (unit.settings.codec == "none") {
    plan.why_exact = *unit.is_dense ? "dense start" : "codec none";
  }
  plan.measures = plan.is_lossy() && !flat() && options_.error_interval > 0 && device_.capture(run.tail()) == 0 &&
                  plan.step % static_cast<uint64_t>(options_.error_interval) == 0;
}

void ReductionPlanner::finish(const ReductionPlan& plan) {
  if (plan.drains) {
    units_.drop_residuals(*plan.unit);
  }
}

// Chooses the codecs of a unit if they have to change.
void ReductionPlanner::follow_start(Unit& unit, const UnitKey& key, int num_summands) {
  const bool is_dense = unit.step < static_cast<uint64_t>(options_.dense_steps);
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
  } else if (unit.settings.codec == "none") {
    unit.codecs.pieces = &plain_codec(key.dtype, num_summands);
    unit.codecs.result = &plain_codec(key.dtype, 1);
  } else {
    unit.codecs.pieces = unit.codecs.result = &codec(unit.settings, key.dtype, num_summands);
  }
  if (unit.error == nullptr) {
    unit.error = device_.make_squared_error();
  }
}

// The first reason that holds, in this order. Null: there is none.
const char* ReductionPlanner::exact_reason(const UnitKey& key, double scale, const char* why_exact) const {
  const Unit* unit = units_.find(key);
  if (options_.codec == "none" && (unit == nullptr || !unit->has_residual())) {
    return "codec none";
  }
  if (why_exact != nullptr) {
    return why_exact;
  }
  if (tiers_.num_nodes() == 1) {
    return "one node";
  }
  if (key.dtype == DataType::kFloat64) {
    return "float64";
  }
  if (key.num_elements == 0) {
    return "empty";
  }
  if (scale == 0 || !std::isfinite(scale)) {
    return "scale is zero or not finite";  // a residual cannot be rescaled by it
  }
  if (flat() && key.collective == Collective::kAllReduce) {
    return "all-reduce in a single tier";
  }
  return why_policy_is_exact(options_, key.name, key.num_elements);
}

// In a graph a new unit would begin with zeros in its residual at every replay, and one whose scale changes would have
// its residual scaled by every replay.
void ReductionPlanner::check_capture(const UnitKey& key, double scale, const char* why_exact, Stream caller) const {
  if (device_.capture(caller) == 0 || exact_reason(key, scale, why_exact) != nullptr) {
    return;
  }
  const Unit* unit = units_.find(key);
  const auto first_steps = static_cast<uint64_t>(options_.dense_steps);
  ISTHMUS_CHECK(Error, unit == nullptr || unit->step >= first_steps, "unit \"", key.name,
                "\" is captured into a graph after ", unit != nullptr ? unit->step : 0, " reductions: expected ",
                first_steps, " before (dense_steps)");
  if (unit == nullptr) {
    ISTHMUS_CHECK(Error, units_.full(), "unit \"", key.name,
                  "\" is reduced for the first time while a graph is captured: expected a step before");
    return;
  }
  const double scale_before = unit->scale / tiers_.piece_type(device_, key.dtype).divisor;
  ISTHMUS_CHECK(Error, unit->scale == 0 || scale_before == scale, "unit \"", key.name, "\" is reduced with scale ",
                scale, " while a graph is captured, and was with ", scale_before, " before: expected one scale");
}

ResidualSizes ReductionPlanner::residual_sizes(const UnitKey& key) const {
  const bool is_all_reduce = key.collective == Collective::kAllReduce;
  if (tiers_.num_nodes() == 1 || (flat() && is_all_reduce)) {
    return {};
  }
  const int64_t chunk = tiers_.chunk_elements(key.num_elements);
  const bool codes_own_piece = options_.own_piece == "coded" && !flat();
  const int num_pieces = codes_own_piece ? tiers_.num_nodes() : tiers_.num_nodes() - 1;
  return {flat() ? key.num_elements : num_pieces * chunk, is_all_reduce ? chunk : 0};
}

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
    tagc_flat = std::make_unique<TagcFlat>(settings, tiers_.world_size());
  }
  return *tagc_flat;
}

}  // namespace isthmus
