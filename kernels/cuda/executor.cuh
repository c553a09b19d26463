// Passes as kernels on a CUDA stream: kernels/block/passes.h says what an executor does.
#pragma once

#define ISTHMUS_KERNEL_NAMESPACE cuda

#include <cuda_runtime.h>

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <stdexcept>
#include <string>

#include "kernels/block/passes.h"
#include "kernels/cuda/group.cuh"
#include "kernels/cuda/run.h"

namespace isthmus::kernels::ISTHMUS_KERNEL_NAMESPACE {

// The numbers are part of the type so that they are part of the kernel's name: tools/cuda_resources.py reads them.
template <typename Pass, int kThreads, int64_t kMaxSharedBytes>
__global__ void __launch_bounds__(kThreads, resident_groups<Pass>()) run_pass(const __grid_constant__ Pass pass) {
  static_assert(IsGroup<CtaGroup<kThreads>>);
  static_assert(kMaxSharedBytes + CtaGroup<kThreads>::kMostFixedSharedBytes <= kMostSharedBytes);
  CtaGroup<kThreads> group;
  pass(group);
}

inline void check_cuda(cudaError_t result, const char* what) {
  if (result != cudaSuccess) {
    throw std::runtime_error(std::string(what) + ": " + cudaGetErrorString(result));
  }
}

// Keeps one number for each device, asked for once. Any thread may use it.
class PerDevice {
 public:
  // ask() must return the same, not negative, for equal keys; it may be asked again.
  template <typename Ask>
  int get(int device, uint32_t key, const Ask& ask) {
    if (device >= kMaxDevices) {
      return ask();
    }
    std::atomic<uint64_t>& known = known_[device];
    const uint64_t now = known.load(std::memory_order_relaxed);
    if (now >> 32 == uint64_t{key} + 1) {
      return static_cast<int>(now & 0xffffffff);
    }
    const int answer = ask();
    known.store((uint64_t{key} + 1) << 32 | static_cast<uint32_t>(answer), std::memory_order_relaxed);
    return answer;
  }

 private:
  static constexpr int kMaxDevices = 64;
  std::atomic<uint64_t> known_[kMaxDevices] = {};  // key + 1, and the answer to it; 0: nothing
};

// How many groups of a pass fit on a device at once. Asking CUDA takes longer than a launch, so each device's last
// answer is kept; shared_bytes changes only with a job's shape.
template <typename Pass>
int resident_groups_of_device(int device, int num_multiprocessors, int64_t shared_bytes) {
  static PerDevice answers;
  return answers.get(device, static_cast<uint32_t>(shared_bytes), [&] {
    auto* kernel = run_pass<Pass, threads_of<Pass>(), most_shared_bytes<Pass>()>;
    cudaFuncAttributes attributes = {};
    check_cuda(cudaFuncGetAttributes(&attributes, kernel), "cudaFuncGetAttributes");
    if (must_ask_for_shared(static_cast<int64_t>(attributes.sharedSizeBytes), shared_bytes)) {
      check_cuda(cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize,
                                      static_cast<int>(most_shared_bytes<Pass>())),
                 "cudaFuncSetAttribute");
    }
    int resident = 0;
    check_cuda(cudaOccupancyMaxActiveBlocksPerMultiprocessor(&resident, kernel, threads_of<Pass>(),
                                                             static_cast<size_t>(shared_bytes)),
               "cudaOccupancyMaxActiveBlocksPerMultiprocessor");
    return num_multiprocessors * std::max(resident, 1);
  });
}

// Launches on one stream of the current device; never waits and never allocates, so that all of it can be captured.
// Throws std::runtime_error where CUDA refuses.
class CudaExecutor {
 public:
  explicit CudaExecutor(cudaStream_t stream) : stream_(stream) {
    check_cuda(cudaGetDevice(&device_), "cudaGetDevice");
    check_cuda(cudaDeviceGetAttribute(&num_multiprocessors_, cudaDevAttrMultiProcessorCount, device_),
               "cudaDeviceGetAttribute");
  }

  void clear(void* memory, int64_t bytes) {
    check_cuda(cudaMemsetAsync(memory, 0, static_cast<size_t>(bytes), stream_), "cudaMemsetAsync");
  }

  // Starts no more groups than run at once; each takes several turns.
  template <typename Pass>
  void run(const Pass& pass, int64_t max_groups, int64_t shared_bytes = most_shared_bytes<Pass>()) {
    const int64_t resident = resident_groups_of_device<Pass>(device_, num_multiprocessors_, shared_bytes);
    auto* kernel = run_pass<Pass, threads_of<Pass>(), most_shared_bytes<Pass>()>;
    kernel<<<static_cast<unsigned>(std::min(max_groups, resident)), threads_of<Pass>(),
             static_cast<size_t>(shared_bytes), stream_>>>(pass);
    check_cuda(cudaGetLastError(), "kernel launch");
  }

 private:
  cudaStream_t stream_;
  int device_ = 0;
  int num_multiprocessors_ = 0;
};

}  // namespace isthmus::kernels::ISTHMUS_KERNEL_NAMESPACE

namespace isthmus::kernels {

// For kernels/<codec>/cuda.cu, which includes the run_passes.h of the codec. Finds the run_passes() of the job by the
// executor's namespace.
template <typename Job>
void cuda_run(const Job& job, void* stream) {
  cuda::CudaExecutor executor(static_cast<cudaStream_t>(stream));
  run_passes(executor, job);
}

}  // namespace isthmus::kernels
