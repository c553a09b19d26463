// Runs codecs' jobs on a GPU. Only source files that call CUDA's runtime include this.
#pragma once

#include <algorithm>
#include <array>
#include <stdexcept>
#include <utility>
#include <variant>
#include <vector>

#include "codec/gpu_device.h"
#include "cuda/cuda_calls.h"
#include "kernels/cuda/run.h"

namespace isthmus {

// One for each lane, because lanes decode side by side, and the last for other streams.
using DeviceFaults = std::array<kernels::DeviceFault, kNumLanes + 1>;

// Kernels keep the first fault of gradients in device memory, which is fast to read, and copy it to memory that the
// host sees. Faults of weights are there alone.
class CudaLauncher final : public DeviceLauncher {
 public:
  // Both of DeviceFaults. faults: in device memory. mapped_faults: where the host looks.
  CudaLauncher(int ordinal, std::vector<cudaStream_t> lanes, kernels::DeviceFault* faults,
               kernels::DeviceFault* mapped_faults)
      : ordinal_(ordinal), lanes_(std::move(lanes)), faults_(faults), mapped_faults_(mapped_faults) {}

  void run(const kernels::AnyJob& job, Stream stream) override {
    const CurrentDevice current(ordinal_);
    try {
      std::visit([&](const auto& each) { kernels::cuda_run(with_fault(each, stream), stream.handle); }, job);
    } catch (const std::runtime_error& error) {
      throw Error(detail::concatenate("cuda:", ordinal_, ": ", error.what()));
    }
  }

 private:
  template <typename Job>
  Job with_fault(Job job, Stream stream) const {
    const auto lane = std::find(lanes_.begin(), lanes_.end(), cuda_stream(stream));
    const auto place = lane == lanes_.end() ? kNumLanes : lane - lanes_.begin();
    set_fault(job, faults_ + place, mapped_faults_ + place);
    return job;
  }

  const int ordinal_;
  const std::vector<cudaStream_t> lanes_;
  kernels::DeviceFault* const faults_;
  kernels::DeviceFault* const mapped_faults_;
};

}  // namespace isthmus
