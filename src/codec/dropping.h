// Common to codecs that drop all but a share of the elements: tagc and sparse.
#pragma once

#include <cmath>
#include <string>

#include "isthmus/options.h"

namespace isthmus {

// A bound for all values: kept elements have at least the mean square of the dropped ones.
inline double error_of_dropping(const Options& options) { return options.sparsity; }

inline double bits_of_value(const std::string& type) { return type == "fp32" ? 32 : type == "int8" ? 8 : 16; }

// Over ramp_steps: kept shares from a quarter down to the requested one, in equal ratios, as in Lin et al., "Deep
// Gradient Compression", ICLR 2018, section 3.3. None where a quarter or more is kept at the end.
inline constexpr double kFirstKeptShare = .25;
inline constexpr int kDroppingStages = 4;

inline int num_dropping_stages(const Options& options) {
  return 1 - options.sparsity < kFirstKeptShare ? kDroppingStages : 0;
}

inline double sparsity_of_stage(const Options& options, int stage) {
  const double kept_share = 1 - options.sparsity;
  const double done = static_cast<double>(stage) / kDroppingStages;
  return 1 - kFirstKeptShare * std::pow(kept_share / kFirstKeptShare, done);
}

}  // namespace isthmus
