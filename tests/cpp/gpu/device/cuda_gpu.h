// The first CUDA device as a Gpu.
#pragma once

#include <cuda_runtime.h>

#include <functional>
#include <memory>

#include "tests/cpp/gpu/device/gpu.h"

namespace isthmus::gpu {

// Throws std::runtime_error that names the call.
void check_cuda(cudaError_t result, const char* call);

// The exit status of a program: body()'s, or 77 where there is no device that works, or 1 where body() throws.
int main_on_cuda(const std::function<int()>& body);

}  // namespace isthmus::gpu
