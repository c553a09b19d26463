#include "codec/gpu_device.h"

#include "isthmus/codec_type.h"
#include "isthmus/error.h"

namespace isthmus {

namespace {

CodecCounts difference(const kernels::DeviceCounts& now, const kernels::DeviceCounts& before) {
  CodecCounts counts;
  const auto kept = static_cast<int64_t>(now.kept_elements - before.kept_elements);
  counts.kept_elements = kept;
  counts.held_back_elements = static_cast<int64_t>(now.chosen_elements - before.chosen_elements) - kept;
  counts.estimated_elements = static_cast<int64_t>(now.estimated_elements - before.estimated_elements);
  counts.non_finite_blocks = static_cast<int64_t>(now.non_finite_blocks - before.non_finite_blocks);
  counts.spikes = static_cast<int64_t>(now.spikes - before.spikes);
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

CodecCounts GpuDevice::codec_counts() {
  const std::lock_guard lock(counts_mutex_);
  return difference(read_counts(), counts_at_reset_);
}

void GpuDevice::reset_codec_counts() {
  const std::lock_guard lock(counts_mutex_);
  counts_at_reset_ = read_counts();
}

void GpuDevice::refuse_other_units(ConstBuffer told, uint64_t unit_hash, Buffer packets, int num_packets,
                                   Stream stream) {
  const kernels::RefuseUnitsJob job = {.told = told.as<kernels::DeviceContext>(),
                                       .num_ranks = told.bytes() / static_cast<int64_t>(sizeof(kernels::DeviceContext)),
                                       .unit_hash = unit_hash,
                                       .packets = packets.as<uint8_t>(),
                                       .num_packets = num_packets,
                                       .packet_bytes = num_packets > 0 ? packets.bytes() / num_packets : 0};
  passes().launcher.run(job, stream);
}

kernels::SquaredErrorJob make_squared_error_job(ConstBuffer given, ConstBuffer decoded, SquaredError* totals,
                                                Buffer scratch) {
  ISTHMUS_CHECK(Error, given.dtype == DataType::kFloat32 && decoded.dtype == DataType::kFloat32,
                "squared error: elements of ", to_string(given.dtype), " and ", to_string(decoded.dtype),
                ", which must be float32");
  ISTHMUS_CHECK(Error, given.num_elements == decoded.num_elements, "squared error: ", given.num_elements,
                " elements given, ", decoded.num_elements, " decoded");
  ISTHMUS_CHECK(Error, scratch.bytes() >= kSquaredErrorScratchBytes, "squared error: scratch memory of ",
                scratch.bytes(), " bytes where ", kSquaredErrorScratchBytes, " are needed");
  // A lock-free atomic of the size of its value is stored as that value (checked in device.h).
  return {.given = given.as<float>(),
          .decoded = decoded.as<float>(),
          .num_elements = given.num_elements,
          .parts = scratch.as<kernels::SquaresOf>(),
          .given_total = reinterpret_cast<double*>(&totals->given),
          .dropped_total = reinterpret_cast<double*>(&totals->dropped)};
}

}  // namespace isthmus
