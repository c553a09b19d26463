// The codecs of a device, behind the interface Codec: they make jobs of their arguments, which a launcher runs.
#pragma once

#include <memory>
#include <string>

#include "isthmus/codec.h"
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

// Shared by the codecs of one device.
struct PassesOfDevice {
  DeviceLauncher& launcher;
  kernels::DeviceCounts* counts;
  kernels::DeviceFault* fault;
};

// As make_codec(), for buffers of the launcher's device, whose memory holds `counts` and `fault`; the codec refers to
// all three. It takes scratch memory from its Workspace, and keeps no state: so several jobs of one codec may be under
// way, each in scratch memory of its own.
//
// encode() returns what the host can count; the device adds the rest to `counts`. decode_sum() returns at
// once and throws no PacketError: faults of packets are written to `fault` (throw_if_reported()).
std::unique_ptr<Codec> make_device_codec(const std::string& name, const Options& options, DataType wire_dtype,
                                         int ranks_per_node, DeviceLauncher& launcher, kernels::DeviceCounts* counts,
                                         kernels::DeviceFault* fault);

}  // namespace isthmus
