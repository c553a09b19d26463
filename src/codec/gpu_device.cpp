#include "codec/gpu_device.h"

#include "codec/squared_error.h"
#include "codec/weights/weight_coder.h"

namespace isthmus {

namespace {

DeviceCodecCounts difference(const kernels::DeviceCounts& now, const kernels::DeviceCounts& before) {
  DeviceCodecCounts counts;
  const auto kept = static_cast<int64_t>(now.kept_elements - before.kept_elements);
  counts.codec.kept_elements = kept;
  counts.codec.held_back_elements = static_cast<int64_t>(now.chosen_elements - before.chosen_elements) - kept;
  counts.codec.non_finite_blocks = static_cast<int64_t>(now.non_finite_blocks - before.non_finite_blocks);
  counts.skipped_elements = static_cast<int64_t>(now.skipped_elements - before.skipped_elements);
  return counts;
}

}  // namespace

int64_t GpuDevice::squared_error_scratch_bytes() const { return kSquaredErrorScratchBytes; }

std::unique_ptr<Codec> GpuDevice::make_codec(const std::string& name, const Options& options, DataType wire_dtype,
                                             int ranks_per_node) {
  const PassesOfDevice here = passes();
  return make_device_codec(name, options, wire_dtype, ranks_per_node, here.launcher, here.counts, here.fault);
}

std::unique_ptr<WeightCoder> GpuDevice::make_weight_coder() {
  return std::make_unique<WeightCoder>(passes().launcher, [this](int64_t bytes) { return allocate_mapped(bytes); });
}

DeviceCodecCounts GpuDevice::codec_counts() {
  const std::lock_guard lock(counts_mutex_);
  return difference(read_counts(), counts_at_reset_);
}

void GpuDevice::reset_codec_counts() {
  const std::lock_guard lock(counts_mutex_);
  counts_at_reset_ = read_counts();
}

}  // namespace isthmus
