#include "codec/gpu_device.h"

#include "codec/squared_error.h"
#include "isthmus/codec_type.h"
#include "isthmus/error.h"

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
  const CodecType& type = find_codec(name);
  ISTHMUS_CHECK(OptionError, type.make_on_device != nullptr, "codec \"", name, "\" runs on the CPU alone");
  return type.make_on_device(options, wire_dtype, ranks_per_node, *this);
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
