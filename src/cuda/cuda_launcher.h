// Runs codecs' jobs on a GPU. Only source files that call CUDA's runtime include this.
#pragma once

#include <stdexcept>
#include <type_traits>
#include <variant>

#include "codec/gpu_device.h"
#include "cuda/cuda_calls.h"
#include "kernels/cuda/run.h"

namespace isthmus {

// Calls launch() with the device current.
template <typename Launch>
void launch_on(int ordinal, const Launch& launch) {
  const CurrentDevice current(ordinal);
  try {
    launch();
  } catch (const std::runtime_error& error) {
    throw Error(detail::concatenate("cuda:", ordinal, ": ", error.what()));
  }
}

// Faults in memory that the host sees. Gradients and weights are decoded side by side.
struct MappedFaults {
  kernels::DeviceFault of_gradients;  // a copy of that in device memory, once it is reported
  kernels::DeviceFault of_weights;
};

// Kernels keep the first fault of gradients in device memory, which is fast to read, and copy it to memory that the
// host sees.
class CudaLauncher final : public DeviceLauncher {
 public:
  CudaLauncher(int ordinal, MappedFaults* faults) : ordinal_(ordinal), faults_(faults) {}

  void run(const kernels::AnyJob& job, Stream stream) override {
    const auto run_on = [&](const auto& each) {
      launch_on(ordinal_, [&] { kernels::cuda_run(with_mapped_fault(each), stream.handle); });
    };
    std::visit(run_on, job);
  }

 private:
  template <typename Job>
  Job with_mapped_fault(Job job) const {
    if constexpr (std::is_base_of_v<kernels::DecodeJobBase, Job>) {
      job.mapped_fault = &faults_->of_gradients;
    } else if constexpr (std::is_same_v<kernels::WeightDecodeJob, Job>) {
      job.mapped_fault = &faults_->of_weights;
    }
    return job;
  }

  const int ordinal_;
  MappedFaults* const faults_;
};

}  // namespace isthmus
