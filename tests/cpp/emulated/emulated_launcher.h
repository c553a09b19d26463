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
  kernels::DeviceCounts* counts() { return static_cast<kernels::DeviceCounts*>(counts_.get()); }
  // While no work is under way.
  kernels::DeviceCounts read_counts();

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
