#include "torch/cuda/torch_cuda_device.h"

#include <c10/cuda/CUDACachingAllocator.h>
#include <c10/cuda/CUDAGuard.h>
#include <c10/cuda/CUDAStream.h>

#include <algorithm>
#include <exception>
#include <memory>
#include <utility>
#include <vector>

#include "torch/base/ranges.h"

namespace isthmus::torch_backend {

// Allocates from the intra lane's pool. Torch hands out freed memory when all *other* lanes are done with it. So is the
// intra lane then, since each path ends what it began there on another lane (decode; gathers have lanes of their own).
// Memory from the caller's pool may still be in use by work that the caller enqueued, and a unit's residual is cleared
// on its lane before the lane is ordered behind the caller's stream.
DeviceMemory TorchCudaDevice::allocate(int64_t bytes) {
  const c10::cuda::CUDAGuard on_device(static_cast<c10::DeviceIndex>(ordinal()));
  std::vector<c10::cuda::CUDAStream> lanes;
  for (int i = 0; i < kNumLanes; ++i) {
    const auto handle = static_cast<cudaStream_t>(lane(static_cast<Lane>(i)).handle);
    lanes.push_back(c10::cuda::getStreamFromExternal(handle, static_cast<c10::DeviceIndex>(ordinal())));
  }
  const c10::cuda::CUDAStreamGuard on_lane(lanes.front());
  auto data = c10::cuda::CUDACachingAllocator::get()->allocate(static_cast<size_t>(std::max<int64_t>(bytes, 1)));
  void* const address = data.get();
  const auto free = [lanes = std::move(lanes)](const c10::DataPtr* memory) {
    try {
      for (const auto& lane : lanes) {
        c10::cuda::CUDACachingAllocator::recordStream(*memory, lane);
      }
    } catch (const std::exception&) {  // CUDA does not work here: leak the memory. Python may free a unit at any time
      return;
    }
    delete memory;
  };
  return {std::shared_ptr<c10::DataPtr>(new c10::DataPtr(std::move(data)), free), address};
}

void TorchCudaDevice::begin_range(const char* name) {
  CudaDevice::begin_range(name);
  torch_backend::begin_range(name);
}

void TorchCudaDevice::end_range() {
  torch_backend::end_range();
  CudaDevice::end_range();
}

}  // namespace isthmus::torch_backend
