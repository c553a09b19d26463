// What the parts of the fake GPU share.
#pragma once

#include <cuda_runtime_api.h>

#include <atomic>
#include <cstddef>
#include <memory>
#include <vector>

// Functions that other libraries call instead of CUDA's and NCCL's.
#define FAKE_API extern "C" __attribute__((visibility("default")))

namespace isthmus::fake_gpu {

// Prints "fake GPU: ..." and ends the program: what follows would be a wrong result.
[[noreturn]] void give_up(const char* format, ...) __attribute__((format(printf, 1, 2)));

// Gives up if `stream` is none of the process.
void check_stream(cudaStream_t stream, const char* caller);

// A kernel has failed: streams, events and the device say so.
inline std::atomic<bool> gpu_has_failed = false;

// Set where FAKE_NCCL_SPINS is: a kernel of NCCL whose peers do not come spins until its communicator is aborted.
bool nccl_spins();

// A kernel that goes on after its launch has returned. It occupies its device, and the streams behind it.
struct Resident {
  int device = 0;
  std::atomic<bool> ended = false;
};
using ResidentPtr = std::shared_ptr<Resident>;

// Thread-safe. Kernels that have not ended, of those that a stream is behind.
std::vector<ResidentPtr> residents_of(cudaStream_t stream);
std::vector<ResidentPtr> residents_of_device(int device);
void add_resident(cudaStream_t stream, const ResidentPtr& kernel);
// Waits until they have ended.
void wait_for(const std::vector<ResidentPtr>& kernels);

// Gives up if memory that begins inside one of the device's allocations does not end there.
void check_memory(const void* address, size_t bytes, const char* caller);

}  // namespace isthmus::fake_gpu
