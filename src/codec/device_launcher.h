// Runs the jobs that a device's codecs make.
#pragma once

#include "isthmus/buffer.h"
#include "kernels/block/device.h"
#include "kernels/jobs.h"

namespace isthmus {

// Enqueues all passes of a job on a stream. The job's memory must stay as long as the stream, or a graph that captured
// it, works on it. Throws Error if the device refuses.
class DeviceLauncher {
 public:
  virtual ~DeviceLauncher() = default;
  virtual void run(const kernels::Job& job, Stream stream) = 0;
};

// What the codecs of one device share. `counts` and `fault` are in the device's memory.
struct PassesOfDevice {
  DeviceLauncher& launcher;
  kernels::DeviceCounts* counts;
  kernels::DeviceFault* fault;
};

}  // namespace isthmus
