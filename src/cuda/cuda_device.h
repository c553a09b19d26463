// A GPU as a Device, in library isthmus_cuda. This header includes none of CUDA's.
#pragma once

#include <memory>
#include <optional>
#include <string>

#include "codec/gpu_device.h"

namespace isthmus {

// The CUDA device `ordinal`, in its primary context. Streams are cudaStream_t. Each call makes the device current and
// restores the previous one. Errors name the call and the device.
//
// Lanes are streams that this object has to itself while it lives. They never wait for the legacy default stream, and
// are never destroyed, so that allocators may be told of them. All have a raised priority; those between nodes have the
// highest.
//
// Any thread may capture a graph during all calls but read(), write(), construction and destruction. A graph holds work
// but no timings: an event recorded during a capture counts as done and has no time.
class CudaDevice : public GpuDevice {
 public:
  // times_events: whether events have times. Events that only order streams cost less to record. Throws Error if there
  // is no such device, or CUDA does not work.
  explicit CudaDevice(int ordinal, bool times_events = true);
  // Waits for all work on the device, because it frees memory.
  ~CudaDevice() override;
  CudaDevice(const CudaDevice&) = delete;
  CudaDevice& operator=(const CudaDevice&) = delete;

  int ordinal() const;

  std::string name() const override;

  // Uses cudaMalloc and cudaFree, which waits for the device. The memory may outlive this object.
  DeviceMemory allocate(int64_t bytes) override;
  void read(ConstBuffer from, Buffer to_host) override;
  void write(ConstBuffer from_host, Buffer to) override;

  void* allocate_on_host(int64_t bytes) override;
  void copy_to_host(ConstBuffer from, Buffer to_host, Stream stream) override;

  Stream lane(Lane lane) override;
  void order(Stream before, Stream after) override;
  EventPtr make_event() override;
  void record(const EventPtr& event, Stream stream) override;
  void wait(const EventPtr& event, Stream stream) override;
  bool done(const EventPtr& event) override;
  std::optional<double> seconds_between(const EventPtr& begin, const EventPtr& end) override;
  uint64_t capture(Stream stream) override;

  void clear(Buffer buffer, Stream stream) override;

  // In mapped host memory that lives at least as long as this device.
  std::shared_ptr<SquaredError> make_squared_error() override;

  void throw_if_faulted() override;

  void begin_range(const char* name) override;  // in the NVTX domain "isthmus"
  void end_range() override;

  PassesOfDevice passes() override;

 private:
  void copy(ConstBuffer in, Buffer out, Stream stream) override;
  // Copies the device's present counts and waits only for that copy.
  kernels::DeviceCounts read_counts() override;

  struct Implementation;
  std::unique_ptr<Implementation> implementation_;
};

}  // namespace isthmus
