// A GPU whose memory comes from torch's allocator, and whose phases torch's profilers show.
#pragma once

#include "cuda/cuda_device.h"

namespace isthmus::torch_backend {

class TorchCudaDevice final : public CudaDevice {
 public:
  explicit TorchCudaDevice(int ordinal) : CudaDevice(ordinal) {}

  // On the caller's current stream, which must be the one that what uses the memory first is ordered behind. Freed on
  // that stream, too, after what the lanes hold by then. Throws c10::OutOfMemoryError.
  DeviceMemory allocate(int64_t bytes) override;

  // For torch.profiler and emit_nvtx as well.
  void begin_range(const char* name) override;
  void end_range() override;
};

}  // namespace isthmus::torch_backend
