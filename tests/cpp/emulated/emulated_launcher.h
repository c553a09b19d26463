// The device codecs of an emulated GPU: what they count and find wrong.
#pragma once

#include <memory>
#include <mutex>

#include "kernels/values/squared_error_job.h"
#include "tests/cpp/emulated/emulated_gpu.h"

namespace isthmus::test {

// Runs the passes of jobs on streams, as one group of one thread: what more threads do is the subject of
// test_tagc_device.cpp. The job's memory is the GPU's.
class EmulatedGpu::Launcher final : public DeviceLauncher {
 public:
  explicit Launcher(EmulatedGpu& gpu);

  void run(const kernels::Job& job, Stream stream) override;

  kernels::DeviceCounts* counts() { return static_cast<kernels::DeviceCounts*>(counts_.get()); }
  kernels::DeviceFault* fault() { return &fault_; }
  // While no work is under way.
  kernels::DeviceCounts read_counts();

  void end_step(bool skipped, Stream stream);
  // error: the host's memory behind the job's totals.
  void add_squared_error(const kernels::SquaredErrorJob& job, const std::shared_ptr<SquaredError>& error,
                         Stream stream);

  // What the host sees now.
  kernels::DeviceFault fault_seen_by_host();

 private:
  template <typename Job>
  void run_job(const Job& job, Stream stream);
  void show_fault();

  EmulatedGpu& gpu_;
  DeviceMemory counts_;
  kernels::DeviceFault fault_;  // of the streams

  std::mutex mutex_;  // guards what follows
  kernels::DeviceFault fault_of_host_;
};

}  // namespace isthmus::test
