// What codecs have in common that drop all but a share of the elements: tagc and sparse.
#pragma once

#include <cmath>
#include <string>

#include "isthmus/options.h"

namespace isthmus {

// What is kept has at least the mean square of what is not, so that no more is lost, whatever the values.
inline double error_of_dropping(const Options& options) { return options.sparsity; }

inline double bits_of_value(const std::string& type) { return type == "fp32" ? 32 : type == "int8" ? 8 : 16; }

// Over ramp_steps: kept shares from a quarter down to what is asked for, in equal ratios, as in Lin et al., "Deep
// Gradient Compression", ICLR 2018, section 3.3. None where as much is kept at the end.
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
