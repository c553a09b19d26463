// A GPU whose memory comes from torch's allocator, and whose phases torch's profilers show.
#pragma once

#include "cuda/cuda_device.h"

namespace isthmus::torch_backend {

class TorchCudaDevice final : public CudaDevice {
 public:
  TorchCudaDevice(int ordinal, bool times_events) : CudaDevice(ordinal, times_events) {}

  // All lanes may use the memory at once, independently of other streams. It is freed after the work that the lanes
  // hold when it is released. Throws c10::OutOfMemoryError with torch's text.
  DeviceMemory allocate(int64_t bytes) override;

  // Ranges also show in torch.profiler and emit_nvtx.
  void begin_range(const char* name) override;
  void end_range() override;
};

}  // namespace isthmus::torch_backend
