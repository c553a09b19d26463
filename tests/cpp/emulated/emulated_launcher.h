// The device codecs of an emulated GPU: what they count and find wrong.
#pragma once

#include <atomic>
#include <map>
#include <memory>
#include <mutex>
#include <optional>

#include "kernels/block/job.h"
#include "tests/cpp/emulated/emulated_gpu.h"
#include "tests/cpp/emulated/emulated_passes.h"

namespace isthmus::test {

// Runs the passes of jobs on streams. The job's memory is the GPU's.
class EmulatedGpu::Launcher final : public DeviceLauncher {
 public:
  Launcher(EmulatedGpu& gpu, std::optional<EmulatedDevice::Cut> cut);

  void run(const kernels::AnyJob& job, Stream stream) override;
  // Calls call(executor), in the thread of a stream.
  template <typename Call>
  void on_executor(const Call& call) {
    if (cut_.has_value()) {
      EmulatedDevice device(*cut_, ++num_executors_);
      call(device);
    } else {
      OneThreadExecutor executor;
      call(executor);
    }
  }

  kernels::DeviceCounts* counts() { return static_cast<kernels::DeviceCounts*>(counts_.get()); }
  // While no work is under way.
  kernels::DeviceCounts read_counts();

  void drop_residual_after_spike(Magnitudes* magnitudes, Buffer residual, Stream stream);
  // error: the host's memory behind the job's totals.
  void add_squared_error(const kernels::SquaredErrorJob& job, const std::shared_ptr<SquaredError>& error,
                         Stream stream);

  // What the host sees now.
  kernels::DeviceFault fault_seen_by_host();

 private:
  template <typename Job>
  void run_job(const Job& job, Stream stream);
  void show_fault(const kernels::DeviceFault& fault);
  kernels::DeviceFault& fault_of(Stream stream);

  EmulatedGpu& gpu_;
  const std::optional<EmulatedDevice::Cut> cut_;
  std::atomic<uint32_t> num_executors_ = 0;
  DeviceMemory counts_;

  std::mutex mutex_;                                    // guards what follows
  std::map<const void*, kernels::DeviceFault> faults_;  // by stream, whose thread alone uses it
  kernels::DeviceFault fault_of_host_;
};

}  // namespace isthmus::test
