// What every CUDA call needs: its device, a check for errors, and permission during a capture. Only source files that
// call CUDA's runtime include this.
#pragma once

#include <cuda.h>
#include <cuda_runtime.h>

#include "isthmus/error.h"

namespace isthmus {

// Throws Error that names the call and the device. It clears errors that leave the device usable, so that later calls
// do not report them again.
inline void check_cuda(cudaError_t result, const char* call, int ordinal) {
  if (result != cudaSuccess) [[unlikely]] {
    cudaGetLastError();
    throw Error(detail::concatenate("cuda:", ordinal, ": ", call, ": ", cudaGetErrorString(result)));
  }
}

// Whether the process uses the device. If it does not, cudaSetDevice() would make a context of hundreds of megabytes.
inline bool has_context(int ordinal) {
  static const auto get_state = [] {
    void* function = nullptr;
    cudaDriverEntryPointQueryResult found = cudaDriverEntryPointSymbolNotFound;
    cudaGetDriverEntryPointByVersion("cuDevicePrimaryCtxGetState", &function, 7000, cudaEnableDefault, &found);
    return reinterpret_cast<CUresult (*)(CUdevice, unsigned*, int*)>(function);
  }();
  unsigned flags = 0;
  int active = 0;
  return get_state == nullptr || get_state(ordinal, &flags, &active) != CUDA_SUCCESS || active != 0;
}

// Makes a device current for the calling thread, and restores the previous one when destroyed. If the process does not
// use the previous device, the thread keeps this one.
class CurrentDevice {
 public:
  explicit CurrentDevice(int ordinal) : ordinal_(ordinal) {
    check_cuda(cudaGetDevice(&before_), "cudaGetDevice", ordinal);
    if (before_ != ordinal_) {
      check_cuda(cudaSetDevice(ordinal_), "cudaSetDevice", ordinal);
    }
  }
  ~CurrentDevice() {
    if (before_ != ordinal_ && has_context(before_)) {
      cudaSetDevice(before_);
    }
  }
  CurrentDevice(const CurrentDevice&) = delete;
  CurrentDevice& operator=(const CurrentDevice&) = delete;

 private:
  int ordinal_;
  int before_ = 0;
};

// During a capture CUDA forbids the capturing thread, and often all others, the calls that could wait for a captured
// stream: allocate, free, query an event. Isthmus never waits like that, so this allows the calling thread such calls.
class AllowedInCapture {
 public:
  AllowedInCapture() { cudaThreadExchangeStreamCaptureMode(&mode_); }
  ~AllowedInCapture() { cudaThreadExchangeStreamCaptureMode(&mode_); }
  AllowedInCapture(const AllowedInCapture&) = delete;
  AllowedInCapture& operator=(const AllowedInCapture&) = delete;

 private:
  cudaStreamCaptureMode mode_ = cudaStreamCaptureModeRelaxed;
};

inline cudaStream_t cuda_stream(Stream stream) { return static_cast<cudaStream_t>(stream.handle); }

}  // namespace isthmus
