// Passes as kernels on a CUDA stream: kernels/tagc_sequence.h says what an executor does.
#pragma once

#include <cuda_runtime.h>

#include <algorithm>
#include <cstdint>
#include <stdexcept>
#include <string>

#include "kernels/cuda_group.cuh"

namespace isthmus::kernels::ISTHMUS_KERNEL_NAMESPACE {

// How many groups must fit on a multiprocessor at once, which bounds a kernel's registers.
template <typename Pass>
constexpr int resident_groups() {
  if constexpr (requires { Pass::kResidentGroups; }) {
    return Pass::kResidentGroups;
  } else {
    return 1;
  }
}

// The numbers are part of the type so that they are part of the kernel's name: tools/cuda_resources.py reads them.
template <typename Pass, int kThreads, int64_t kMaxSharedBytes>
__global__ void __launch_bounds__(kThreads, resident_groups<Pass>()) run_pass(const __grid_constant__ Pass pass) {
  CtaGroup group;
  pass(group);
}

inline void check_cuda(cudaError_t result, const char* what) {
  if (result != cudaSuccess) {
    throw std::runtime_error(std::string(what) + ": " + cudaGetErrorString(result));
  }
}

// Launches on one stream of the current device; never waits and never allocates, so that all of it can be captured.
// Throws std::runtime_error where CUDA refuses.
class CudaExecutor {
 public:
  explicit CudaExecutor(cudaStream_t stream) : stream_(stream) {
    int device = 0;
    check_cuda(cudaGetDevice(&device), "cudaGetDevice");
    check_cuda(cudaDeviceGetAttribute(&num_multiprocessors_, cudaDevAttrMultiProcessorCount, device),
               "cudaDeviceGetAttribute");
  }

  void clear(void* memory, int64_t bytes) {
    check_cuda(cudaMemsetAsync(memory, 0, static_cast<size_t>(bytes), stream_), "cudaMemsetAsync");
  }

  template <typename Pass>
  void run(const Pass& pass, int64_t max_groups, int64_t shared_bytes) {
    constexpr int kThreads = Pass::kThreads;
    constexpr int64_t kDefaultSharedBytes = 48 * 1024;
    auto* kernel = run_pass<Pass, kThreads, Pass::kMaxSharedBytes>;
    if (shared_bytes > kDefaultSharedBytes) {
      check_cuda(cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize,
                                      static_cast<int>(Pass::kMaxSharedBytes)),
                 "cudaFuncSetAttribute");
    }
    int resident = 0;  // groups on a multiprocessor; no more are started than run at once, each takes several turns
    check_cuda(
        cudaOccupancyMaxActiveBlocksPerMultiprocessor(&resident, kernel, kThreads, static_cast<size_t>(shared_bytes)),
        "cudaOccupancyMaxActiveBlocksPerMultiprocessor");
    const auto groups =
        static_cast<unsigned>(std::min(max_groups, int64_t{num_multiprocessors_} * std::max(resident, 1)));
    kernel<<<groups, kThreads, static_cast<size_t>(shared_bytes), stream_>>>(pass);
    check_cuda(cudaGetLastError(), "kernel launch");
  }

 private:
  cudaStream_t stream_;
  int num_multiprocessors_ = 0;
};

}  // namespace isthmus::kernels::ISTHMUS_KERNEL_NAMESPACE
