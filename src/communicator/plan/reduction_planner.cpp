#include "communicator/plan/reduction_planner.h"

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

// Whether all parameters of the unit have gradients.
bool is_whole(const Reduction& reduction) {
  return reduction.sections == nullptr || reduction.sections->hash() == reduction.unit->key.layout;
}

}  // namespace

ReductionPlanner::ReductionPlanner(const TierSet& tiers, Device& device, const Options& options, GroupUnits& units)
    : tiers_(tiers), device_(device), options_(options), plain_options_(plain(options)), units_(units) {
  ISTHMUS_CHECK(OptionError, !flat() || options_.codec == "tagc" || !options_.is_lossy(),
                "option tiers=\"flat\": expected codec tagc or none, not ", options_.codec);
  if (!flat()) {
    codec(options_, DataType::kFloat32, 1);  // throws if the settings do not fit the codec
  } else if (options_.codec == "tagc") {
    tagc_flat_ = make_tagc_flat(options_, device_);
  }
}

ReductionPlan ReductionPlanner::plan(const Run& run, const Reduction& reduction) {
  Unit& unit = *reduction.unit;
  units_.take(reduction.unit);
  decide(unit);
  ReductionPlan plan;
  plan.unit = &unit;
  plan.scale = reduction.scale * divisor(unit.key.dtype);
  plan.why_exact = why_exact(reduction);
  plan.hash = hash_of(reduction);
  plan.step = num_reductions_++;
  const bool in_graph = device_.capture(run.tail()) != 0;
  // A graph cannot send the residual along: it would hold the memory that is freed.
  plan.sends_residual = unit.has_residual() && !flat() && !in_graph && is_whole(reduction) &&
                        has_good_scale(reduction) && (plan.why_exact || !unit.codec_keeps_residual);
  plan.has_state = !plan.why_exact || plan.sends_residual;
  if (plan.has_state) {
    plan_with_state(plan);
  } else {
    plan.codecs = plain_codecs(unit.key.dtype, num_summands(unit.key.dtype));
  }
  plan.measures = plan.is_lossy() && !flat() && options_.error_interval > 0 && !in_graph &&
                  steps_in(plan.step) % static_cast<uint64_t>(options_.error_interval) == 0;
  return plan;
}

void ReductionPlanner::plan_with_state(ReductionPlan& plan) {
  Unit& unit = *plan.unit;
  units_.give_state(unit);
  if (unit.packet_hash != plan.hash) {
    unit.set_context(device_, plan.hash, unit.step);
  }
  unit.follow_scale(device_, plan.scale);
  plan.step = unit.step++;
  plan.codecs = unit.codecs;
  if (plan.sends_residual) {
    plan.why_exact = Reason::kTakesResidual;  // once
  } else if (unit.codec_keeps_residual && !unit.key.may_keep_residual) {
    plan.why_exact = Reason::kWhoseResidual;
  } else if (unit.codec_keeps_residual && !unit.has_residual()) {
    units_.give_residuals(unit);
  }
  if (plan.why_exact) {
    plan.codecs = plain_codecs(unit.key.dtype, num_summands(unit.key.dtype));
  } else if (*unit.is_dense) {
    plan.why_exact = Reason::kDenseStart;
  }
}

void ReductionPlanner::decide(Unit& unit) {
  const bool is_dense = steps_in(unit.step) < static_cast<uint64_t>(options_.dense_steps);
  if (unit.is_dense == is_dense) {
    return;
  }
  const DataType dtype = unit.key.dtype;
  unit.is_dense = is_dense;
  unit.why_always_exact = why_always_exact(unit);
  unit.settings = is_dense ? &plain_options_ : &options_;
  if (flat() || !unit.settings->is_lossy() || unit.why_always_exact) {
    unit.codecs = plain_codecs(dtype, num_summands(dtype));
    unit.codecs.flat = is_dense || unit.why_always_exact ? nullptr : tagc_flat_.get();
    unit.codec_keeps_residual = unit.codecs.flat != nullptr;
  } else {
    unit.codecs.pieces = unit.codecs.result = &codec(options_, dtype, num_summands(dtype));
    unit.codec_keeps_residual = unit.codecs.pieces->keeps_residual();
  }
  if (unit.error == nullptr && !unit.why_always_exact) {
    unit.error = device_.make_squared_error();
  }
}

// The first reason that holds, in this order, which is that of Reason; nothing: there is none.
std::optional<Reason> ReductionPlanner::why_always_exact(const Unit& unit) const {
  const UnitKey& key = unit.key;
  if (!options_.is_lossy()) {
    return Reason::kCodecNone;
  }
  if (unit.why_exact) {
    return unit.why_exact;
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
  if (flat() && key.collective == Collective::kAllReduce) {
    return Reason::kFlatAllReduce;
  }
  return why_policy_is_exact(options_, key.name, key.num_elements);
}

std::optional<Reason> ReductionPlanner::why_exact(const Reduction& reduction) const {
  const Unit& unit = *reduction.unit;
  std::optional<Reason> why = unit.is_dense ? unit.why_always_exact : why_always_exact(unit);
  const auto add = [&why](Reason reason) { why = why ? std::min(*why, reason) : reason; };
  if (reduction.why_exact) {
    add(*reduction.why_exact);
  }
  if (!has_good_scale(reduction)) {
    add(Reason::kBadScale);
  }
  if (!is_whole(reduction)) {
    if (!is_large(options_, num_elements_of(reduction, tiers_.world_size()))) {
      add(Reason::kTooSmall);
    }
    if (unit.codec_keeps_residual || unit.has_residual()) {
      add(Reason::kResidualRests);
    }
  }
  return why;
}

// Refuses what a graph would repeat at every replay: a new unit, whose residual would begin with zeros, a unit with a
// new scale, whose residual would be scaled, and a step in a single tier, which seeds its sketch.
void ReductionPlanner::check_capture(const Reduction& reduction, Stream caller) const {
  if (device_.capture(caller) == 0 || why_exact(reduction)) {
    return;
  }
  const Unit& unit = *reduction.unit;
  const std::string& name = unit.key.name;
  ISTHMUS_CHECK(Error, !flat(), "unit \"", name, "\" is captured into a graph: expected tiers=\"two\", not \"flat\"");
  const auto first_steps = static_cast<uint64_t>(options_.dense_steps);
  ISTHMUS_CHECK(Error, steps_in(unit.step) >= first_steps, "unit \"", name, "\" is captured into a graph after ",
                steps_in(unit.step), " reductions: expected ", first_steps, " before (dense_steps)");
  ISTHMUS_CHECK(Error, unit.has_state, "unit \"", name,
                "\" is reduced for the first time while a graph is captured: expected a step before");
  ISTHMUS_CHECK(Error, unit.packet_hash == hash_of(reduction), "unit \"", name,
                "\" is reduced with other parameters while a graph is captured than before: expected the same");
  const double scale_before = unit.scale / divisor(unit.key.dtype);
  ISTHMUS_CHECK(Error, unit.scale == 0 || scale_before == reduction.scale, "unit \"", name, "\" is reduced with scale ",
                reduction.scale, " while a graph is captured, and was with ", scale_before,
                " before: expected one scale");
}

uint64_t ReductionPlanner::hash_of(const Reduction& reduction) const {
  if (is_whole(reduction)) {
    return reduction.unit->hash;
  }
  UnitKey key = reduction.unit->key;
  key.num_elements = num_elements_of(reduction, tiers_.world_size());
  key.layout = reduction.sections->hash();
  return key.hash();
}

double ReductionPlanner::divisor(DataType dtype) const {
  return flat() ? 1 : tiers_.piece_type(device_, dtype).divisor;
}

// With a divisor the sums are scaled already.
int ReductionPlanner::num_summands(DataType dtype) const { return divisor(dtype) == 1 ? tiers_.ranks_per_node() : 1; }

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
