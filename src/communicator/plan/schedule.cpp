#include "communicator/plan/schedule.h"

#include <algorithm>

#include "codec/registry.h"

namespace isthmus {

int num_ramp_stages(const Options& options) {
  const CodecType* type = codec_or_null(options.codec);
  return type == nullptr || type->num_stages == nullptr ? 0 : type->num_stages(options);
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
  if (stage == kDense) {
    Options exact = options;
    exact.codec = "none";
    return exact;
  }
  return stage < num_ramp_stages(options) ? find_codec(options.codec).at_stage(options, stage) : options;
}

}  // namespace isthmus
