// The first CUDA device as a Gpu.
#pragma once

#include <memory>

#include "tests/gpu/support/gpu.h"

namespace isthmus::gpu {

// Whether there is one that works.
bool has_cuda_gpu();

std::unique_ptr<Gpu> make_cuda_gpu();

}  // namespace isthmus::gpu
