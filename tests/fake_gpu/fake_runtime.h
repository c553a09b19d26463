// What the parts of the fake GPU share.
#pragma once

#include <cuda_runtime_api.h>

#include <cstddef>

// Functions that other libraries call instead of CUDA's and NCCL's.
#define FAKE_API extern "C" __attribute__((visibility("default")))

namespace isthmus::fake_gpu {

// Prints "fake GPU: ..." and ends the program: what follows would be a wrong result.
[[noreturn]] void give_up(const char* format, ...) __attribute__((format(printf, 1, 2)));

// Gives up if `stream` is none of the process.
void check_stream(cudaStream_t stream, const char* caller);

// Gives up if memory that begins inside one of the device's allocations does not end there.
void check_memory(const void* address, size_t bytes, const char* caller);

}  // namespace isthmus::fake_gpu
