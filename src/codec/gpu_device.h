// What devices share whose codecs run as passes on streams.
#pragma once

#include <cstdint>
#include <memory>
#include <mutex>
#include <string>
#include <type_traits>

#include "isthmus/device.h"
#include "kernels/block/device.h"
#include "kernels/block/job.h"
#include "kernels/jobs.h"

namespace isthmus {

// Enqueues all passes of a job on a stream. The job's memory must stay as long as the stream, or a graph that captured
// it, works on it. A job that decodes gets the stream's fault. Throws Error if the device refuses.
class DeviceLauncher {
 public:
  virtual ~DeviceLauncher() = default;
  virtual void run(const kernels::AnyJob& job, Stream stream) = 0;
};

// Tells a job that may refuse what it gets where faults go; others have none. fault: in the device's memory, of packets
// of gradients alone. mapped_fault: in memory that the host sees.
template <typename Job>
void set_fault(Job& job, kernels::DeviceFault* fault, kernels::DeviceFault* mapped_fault) {
  if constexpr (std::is_base_of_v<kernels::DecodeJobBase, Job>) {
    job.fault = fault;
    job.mapped_fault = mapped_fault;
  } else if constexpr (requires { job.mapped_fault; }) {
    job.mapped_fault = mapped_fault;
  }
}

// What the codecs of one device share. `counts` is in the device's memory.
struct PassesOfDevice {
  DeviceLauncher& launcher;
  kernels::DeviceCounts* counts;
};

// Makes codecs from the device's launcher, reads the counts that passes write, and does arithmetic by passes.
class GpuDevice : public Device {
 public:
  bool is_host() const override { return false; }
  int64_t squared_error_scratch_bytes() const override;
  std::unique_ptr<Codec> make_codec(const std::string& name, const Options& options, DataType wire_dtype,
                                    int ranks_per_node) override;
  DataType piece_dtype(DataType dtype) const override { return dtype; }

  void convert(ConstBuffer in, Buffer out, Stream stream) override;
  void convert_scaled(ConstBuffer in, double scale, Buffer out, Stream stream) override;
  void multiply(Buffer values, double factor, Stream stream) override;
  void add(ConstBuffer values, Buffer sum, Stream stream) override;
  // The device finds `error` at its address on the host.
  void add_squared_error(ConstBuffer given, ConstBuffer decoded, const std::shared_ptr<SquaredError>& error,
                         Workspace workspace) override;
  void set_contexts(DeviceContext* contexts, int count, PacketContext value, Stream stream) override;
  void next_step(DeviceContext* context, Stream stream) override;
  CodecCounts drop_residual_after_spike(Magnitudes* magnitudes, Buffer residual, Stream stream) override;
  void refuse_other_units(ConstBuffer told, uint64_t unit_hash, Buffer packets, int num_packets,
                          Stream stream) override;

  CodecCounts codec_counts() override;
  // Subtracts the present counts from later ones. The device's words only grow, so encodings under way, or in a graph,
  // are not disturbed.
  void reset_codec_counts() override;

  virtual PassesOfDevice passes() = 0;

 private:
  // out = in, of one type, as work of the stream.
  virtual void copy(ConstBuffer in, Buffer out, Stream stream) = 0;
  // The present counts of the device's codecs. One thread at a time calls it.
  virtual kernels::DeviceCounts read_counts() = 0;

  std::mutex counts_mutex_;  // guards what follows, and read_counts()
  kernels::DeviceCounts counts_at_reset_;
};

// Throws Error that names `what`, unless both have equally many elements.
void check_same_length(const char* what, ConstBuffer in, ConstBuffer out);

inline constexpr int64_t kSquaredErrorScratchBytes = kernels::kSquaredErrorParts * sizeof(kernels::SquaresOf);

// Makes the job that measures a codec's error. Throws Error for wrong types and sizes.
kernels::SquaredErrorJob make_squared_error_job(ConstBuffer given, ConstBuffer decoded, SquaredError* totals,
                                                Buffer scratch);

}  // namespace isthmus
