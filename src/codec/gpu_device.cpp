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

void check_floating(DataType dtype) {
  ISTHMUS_CHECK(Error, dtype != DataType::kByte, "no arithmetic on elements of type ", to_string(dtype));
}

}  // namespace

void check_same_length(const char* what, ConstBuffer in, ConstBuffer out) {
  ISTHMUS_CHECK(Error, in.num_elements == out.num_elements, what, ": ", in.num_elements, " elements into ",
                out.num_elements);
}

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

void GpuDevice::convert(ConstBuffer in, Buffer out, Stream stream) {
  check_same_length("convert", in, out);
  if (in.num_elements == 0 || (in.dtype == out.dtype && in.data == out.data)) {
    return;
  }
  if (in.dtype == out.dtype) {
    return copy(in, out, stream);
  }
  check_floating(in.dtype);
  check_floating(out.dtype);
  passes().launcher.run(kernels::ConvertJob{in, out}, stream);
}

void GpuDevice::convert_scaled(ConstBuffer in, double scale, Buffer out, Stream stream) {
  check_same_length("convert_scaled", in, out);
  check_floating(in.dtype);
  check_floating(out.dtype);
  passes().launcher.run(kernels::ConvertJob{in, out, scale}, stream);
}

void GpuDevice::multiply(Buffer values, double factor, Stream stream) {
  ISTHMUS_CHECK(Error, values.dtype == DataType::kFloat32, "multiply: elements of ", to_string(values.dtype),
                ", which must be float32");
  passes().launcher.run(kernels::MultiplyJob{values, factor}, stream);
}

void GpuDevice::add(ConstBuffer values, Buffer sum, Stream stream) {
  check_same_length("add", values, sum);
  ISTHMUS_CHECK(Error, values.dtype == DataType::kFloat32 && sum.dtype == DataType::kFloat32, "add: elements of ",
                to_string(values.dtype), " to ", to_string(sum.dtype), ", which must be float32");
  passes().launcher.run(kernels::AddJob{values, sum}, stream);
}

void GpuDevice::add_squared_error(ConstBuffer given, ConstBuffer decoded, const std::shared_ptr<SquaredError>& error,
                                  Workspace workspace) {
  passes().launcher.run(make_squared_error_job(given, decoded, error.get(), workspace.scratch), workspace.stream);
}

void GpuDevice::set_contexts(DeviceContext* contexts, int count, PacketContext value, Stream stream) {
  passes().launcher.run(kernels::SetContextsJob{contexts, count, {value.unit_hash, value.step}}, stream);
}

void GpuDevice::next_step(DeviceContext* context, Stream stream) {
  passes().launcher.run(kernels::NextStepJob{context}, stream);
}

CodecCounts GpuDevice::drop_residual_after_spike(Magnitudes* magnitudes, Buffer residual, Stream stream) {
  const PassesOfDevice device = passes();
  device.launcher.run(kernels::DropResidualJob{magnitudes, residual, device.counts}, stream);
  return {};
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
