// How each reduction is done. Everything here is decided from what is equal on all ranks: options, the key, and what
// was decided before.
#include <cmath>

#include "codec/tagc/flat.h"
#include "communicator/plan/policy.h"
#include "communicator/plan/schedule.h"
#include "communicator/step.h"
#include "communicator/units/unit_table.h"
#include "isthmus/communicator.h"
#include "isthmus/error.h"

namespace isthmus {

Communicator::Reduction Communicator::decide(const UnitKey& key, double scale, const char* why_exact) {
  phase_ = "unit look-up";
  const double divisor = flat() ? 1 : piece_type(key.dtype).divisor;
  const int num_summands = divisor == 1 ? ranks_per_node() : 1;  // others have been divided already
  Reduction reduction;
  reduction.scale = scale * divisor;
  current_reason_ = exact_reason(key, scale, why_exact);
  if (current_reason_ == nullptr) {
    reduction.unit = units_->find_or_add(key);
    current_reason_ = reduction.unit == nullptr ? "more than max_units units" : nullptr;
  }
  if (reduction.unit != nullptr) {
    decide_for_unit(key, num_summands, reduction);
  } else {
    reduction.hash = key.hash();
    reduction.step = num_reductions_;
    reduction.contexts = plain_contexts_.get();
    reduction.codec = &plain_codec(key.dtype, num_summands);
    reduction.result_codec = &plain_codec(key.dtype, 1);  // a result is no sum to which more is added
  }
  ++num_reductions_;
  current_key_ = &key;
  current_unit_.stats.codec = reduction.codec->name();
  return reduction;
}

void Communicator::decide_for_unit(const UnitKey& key, int num_summands, Reduction& reduction) {
  Unit& unit = *reduction.unit;
  follow_stage(unit, key, num_summands);
  unit.follow_scale(*device_, reduction.scale);
  reduction.hash = unit.hash;
  reduction.step = unit.step++;
  reduction.contexts = unit.contexts.get();
  reduction.codec = unit.codecs.pieces;
  reduction.result_codec = unit.codecs.result;
  reduction.tagc_flat = unit.codecs.flat;
  const bool keeps_residual = flat() ? reduction.tagc_flat != nullptr : reduction.codec->keeps_residual();
  const bool must_not_keep = keeps_residual && !key.may_keep_residual;
  if (keeps_residual && key.may_keep_residual && !unit.has_residual()) {
    units_->add_residuals(unit, key, residual_sizes(key));
  }
  reduction.drains = !keeps_residual && unit.has_residual() && !flat();
  if (reduction.drains || must_not_keep) {
    reduction.codec = &plain_codec(key.dtype, num_summands);
    reduction.result_codec = &plain_codec(key.dtype, 1);
    reduction.tagc_flat = nullptr;
    current_reason_ = must_not_keep ? kWhoseResidual : "takes the residual along";  // the latter once
  } else if (unit.settings.codec == "none") {
    current_reason_ = *unit.stage == kDense ? "dense start" : chooses() ? kChosenExact : "codec none";
  }
  reduction.is_lossy = current_reason_ == nullptr;
  reduction.measures = reduction.is_lossy && !flat() && options_.error_interval > 0 && device_->capture(here_) == 0 &&
                       reduction.step % static_cast<uint64_t>(options_.error_interval) == 0;
  current_unit_.stats.settings = unit.settings.codec_settings();
  current_unit_.error = unit.error;
  current_unit_.choice = unit.choice;
}

// Chooses the codecs of a unit where they are to change.
void Communicator::follow_stage(Unit& unit, const UnitKey& key, int num_summands) {
  const Options& wanted = wanted_settings(unit, key);
  const int stage = stage_of(wanted, unit.step);
  if (unit.stage == stage) {
    return;
  }
  unit.stage = stage;
  unit.settings = options_of_stage(wanted, stage);
  unit.codecs = {};
  if (flat()) {
    unit.codecs.flat = stage == kDense ? nullptr : &tagc_flat(unit.settings);
    unit.codecs.pieces = unit.codecs.result = &plain_codec(key.dtype, num_summands);
  } else if (unit.settings.codec == "none") {
    unit.codecs.pieces = &plain_codec(key.dtype, num_summands);
    unit.codecs.result = &plain_codec(key.dtype, 1);
  } else {
    unit.codecs.pieces = unit.codecs.result = &codec(unit.settings, key.dtype, num_summands);
  }
  if (unit.error == nullptr) {
    unit.error = device_->make_squared_error();
  }
}

const char* Communicator::exact_reason(const UnitKey& key, double scale, const char* why_exact) const {
  const Unit* unit = units_->find(key);
  if (options_.codec == "none" && (unit == nullptr || !unit->has_residual())) {
    return "codec none";
  }
  if (why_exact != nullptr) {
    return why_exact;
  }
  if (num_nodes() == 1) {
    return "one node";
  }
  if (key.dtype == DataType::kFloat64) {
    return "float64";
  }
  if (key.num_elements == 0) {
    return "empty";
  }
  if (scale == 0 || !std::isfinite(scale)) {
    return "scale is zero or not finite";  // what a residual holds cannot be kept under it
  }
  if (flat() && key.collective == Collective::kAllReduce) {
    return "all-reduce in a single tier";
  }
  if (key.num_elements < options_.min_elements) {
    return "below min_elements";
  }
  return unit_is_compressed(options_.units, key.name) ? nullptr : "excluded by policy (units)";
}

// Those of a codec that keeps residuals.
ResidualSizes Communicator::residual_sizes(const UnitKey& key) {
  const bool is_all_reduce = key.collective == Collective::kAllReduce;
  if (num_nodes() == 1 || (flat() && is_all_reduce)) {
    return {};
  }
  const int64_t chunk = chunk_elements(key.num_elements);
  const int num_pieces = codes_own_piece() ? num_nodes() : num_nodes() - 1;
  return {flat() ? key.num_elements : num_pieces * chunk, is_all_reduce ? chunk : 0};
}

Codec& Communicator::codec(const Options& settings, DataType dtype, int num_summands) {
  std::unique_ptr<Codec>& codec = codecs_[{settings.codec_settings(), dtype, num_summands}];
  if (codec == nullptr) {
    codec = device_->make_codec(settings.codec, settings, dtype, num_summands);
  }
  return *codec;
}

Codec& Communicator::plain_codec(DataType dtype, int num_summands) {
  std::unique_ptr<Codec>& codec = codecs_[{"none", dtype, num_summands}];
  if (codec == nullptr) {
    codec = device_->make_codec("none", options_, dtype, num_summands);
  }
  return *codec;
}

TagcFlat& Communicator::tagc_flat(const Options& settings) {
  std::unique_ptr<TagcFlat>& tagc_flat = tagc_flat_[settings.codec_settings()];
  if (tagc_flat == nullptr) {
    tagc_flat = std::make_unique<TagcFlat>(settings, map_.world_size());
  }
  return *tagc_flat;
}

}  // namespace isthmus
