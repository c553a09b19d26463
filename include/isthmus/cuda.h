// GPUs for a communicator without torch: library isthmus_cuda, built with ISTHMUS_BUILD_CUDA.
#pragma once

#include <memory>

#include "isthmus/device.h"

namespace isthmus {

// The CUDA device `ordinal`. Its streams are cudaStream_t, and its memory comes from cudaMalloc. Throws Error if there
// is no such device.
std::shared_ptr<Device> make_cuda_device(int ordinal);

}  // namespace isthmus
