// GPUs for the communicator without torch. In the library isthmus_cuda, which is built with ISTHMUS_BUILD_CUDA.
#pragma once

#include <memory>
#include <string>

#include "isthmus/device.h"

namespace isthmus {

// The CUDA device `ordinal` as a Device, whose streams are cudaStream_t. Its memory comes from cudaMalloc. Throws Error
// where there is no such device.
std::shared_ptr<Device> make_cuda_device(int ordinal);

int num_cuda_devices();                      // 0 where CUDA does not work
std::string cuda_device_model(int ordinal);  // "NVIDIA H200"

}  // namespace isthmus
