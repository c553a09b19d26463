// How a unit's codec is brought in: exact at first (dense_steps), then by stages that drop more and more (ramp_steps).
#pragma once

#include <cstdint>

#include "isthmus/options.h"

namespace isthmus {

// Stages of a unit, in order: kDense, then 0 ... num_ramp_stages() - 1, then the last one, which has the options
// unchanged. Equal on all ranks, since it depends on options and the unit's step alone.
inline constexpr int kDense = -1;

// CodecType::num_stages of options.codec.
int num_ramp_stages(const Options& options);

// The stage of a unit's reduction number `step`, from 0.
int stage_of(const Options& options, uint64_t step);

// `options` with the values of that stage.
Options options_of_stage(const Options& options, int stage);

}  // namespace isthmus
