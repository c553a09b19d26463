// What the parts of the fake GPU share: how they give up, what goes on after a launch, and what is told of a process.
#pragma once

#include <cuda_runtime_api.h>

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "kernels/block/job.h"
#include "tests/cpp/support/stream_order.h"

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

// --- fake_counts.cpp: what a process asks of the fake GPU, which Python reads by ctypes

enum class Count { kSynchronizations, kAllocations, kNcclLaunches, kNumCounts };

// Thread-safe. Counts until fake_gpu_take_counts() is called.
void count(Count what);
// A launch: of a pass, or what clears or copies memory. moved: null where the data decide.
void count_launch(const std::string& name, const kernels::Moved* moved);
// A communicator of NCCL. most_ctas: its configuration's bound of multiprocessors; 0: none.
void count_communicator(int size, int most_ctas);

// While it lives, the calling thread does the device's work: its time is none of the host's.
class DeviceWork {
 public:
  DeviceWork();
  ~DeviceWork();
  DeviceWork(const DeviceWork&) = delete;
  DeviceWork& operator=(const DeviceWork&) = delete;

 private:
  int64_t begin_ns_;
};

// --- fake_trace.cpp: which work on which stream uses which memory, and what orders streams

// Thread-safe. They write a line each while fake_gpu_trace() says so, and do nothing else.
void trace_work(const std::string& name, cudaStream_t stream, const std::vector<test::MemoryUse>& uses);
void trace_record(cudaEvent_t event, cudaStream_t stream);
void trace_wait(cudaStream_t stream, cudaEvent_t event);
// A thread looks whether an event has passed.
void trace_query(cudaEvent_t event);
// The host waits for all that a "stream", an "event" or the "device" has.
void trace_synchronize(const char* with, const void* handle);

}  // namespace isthmus::fake_gpu
