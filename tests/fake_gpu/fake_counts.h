// What a process asks of the fake GPU: Python reads it, by ctypes.
#pragma once

#include <cstdint>
#include <string>

#include "kernels/block/job.h"

namespace isthmus::fake_gpu {

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

}  // namespace isthmus::fake_gpu
