// What runs the jobs that a device's codecs make of their arguments.
#pragma once

#include "isthmus/buffer.h"
#include "kernels/block/device.h"
#include "kernels/jobs.h"

namespace isthmus {

// Enqueues all passes of a job on a stream, and returns. The job's memory must stay as long as the stream, or a graph
// that captured it, works on it. Throws Error where the device refuses.
class DeviceLauncher {
 public:
  virtual ~DeviceLauncher() = default;
  virtual void run(const kernels::Job& job, Stream stream) = 0;
};

// Shared by the codecs of one device, whose memory holds `counts` and `fault`.
struct PassesOfDevice {
  DeviceLauncher& launcher;
  kernels::DeviceCounts* counts;
  kernels::DeviceFault* fault;
};

}  // namespace isthmus
