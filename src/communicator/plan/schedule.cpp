#include "communicator/plan/schedule.h"

#include <algorithm>
#include <array>
#include <cmath>

namespace isthmus {
namespace {

constexpr std::array<int64_t, 5> kWidths = {8, 4, 3, 2, 1};  // of quant's codes, in bits
constexpr double kFirstKeptShare = .25;
constexpr int kSparseStages = 4;

bool drops_elements(const Options& options) { return options.codec == "tagc" || options.codec == "sparse"; }

}  // namespace

int num_ramp_stages(const Options& options) {
  if (options.codec == "quant") {
    return static_cast<int>(std::find(kWidths.begin(), kWidths.end(), options.bits) - kWidths.begin());
  }
  return drops_elements(options) && 1 - options.sparsity < kFirstKeptShare ? kSparseStages : 0;
}

int stage_of(const Options& options, uint64_t step) {
  const auto dense_steps = static_cast<uint64_t>(options.dense_steps);
  if (step < dense_steps) {
    return kDense;
  }
  const auto ramp_steps = static_cast<uint64_t>(options.ramp_steps);
  const uint64_t ramped = std::min(step - dense_steps, ramp_steps);
  const auto num_stages = static_cast<double>(num_ramp_stages(options));
  return ramped == ramp_steps
             ? static_cast<int>(num_stages)
             : static_cast<int>(num_stages * static_cast<double>(ramped) / static_cast<double>(ramp_steps));
}

Options options_of_stage(const Options& options, int stage) {
  Options changed = options;
  if (stage == kDense) {
    changed.codec = "none";
  } else if (stage >= num_ramp_stages(options)) {
    return changed;
  } else if (options.codec == "quant") {
    changed.bits = kWidths.at(static_cast<size_t>(stage));
  } else {
    const double kept_share = 1 - options.sparsity;
    const double done = static_cast<double>(stage) / kSparseStages;
    changed.sparsity = 1 - kFirstKeptShare * std::pow(kept_share / kFirstKeptShare, done);
    changed.ratio = options.tiers == "two" ? 0 : 1;  // a sketch that has room for what is kept
  }
  return changed;
}

}  // namespace isthmus
