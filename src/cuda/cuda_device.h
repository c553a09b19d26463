// A GPU as a Device. Free of CUDA's headers; in the library isthmus_cuda.
#pragma once

#include <memory>
#include <optional>
#include <string>

#include "codec/gpu_device.h"

namespace isthmus {

// The CUDA device `ordinal`, in its primary context. Streams are cudaStream_t. Each call makes the device current for
// as long as it takes, and restores the one that was. Errors name the call and the device.
//
// The lanes are streams of its own while it lives, which never wait for the legacy default stream and are never
// destroyed, so that allocators may be told of them. All have a raised priority, those between nodes the highest.
//
// All but read(), write(), construction and destruction may happen while any thread captures a graph. A graph holds
// work and no timings: an event that was recorded during a capture counts as done, and has no time.
class CudaDevice : public GpuDevice {
 public:
  // times_events: whether events have times; where they only order streams, recording one costs less.
  // Throws Error where there is no such device, or CUDA does not work.
  explicit CudaDevice(int ordinal, bool times_events = true);
  // Waits for all work on the device, because memory is freed.
  ~CudaDevice() override;
  CudaDevice(const CudaDevice&) = delete;
  CudaDevice& operator=(const CudaDevice&) = delete;

  int ordinal() const;

  std::string name() const override;

  // By cudaMalloc; freed by cudaFree, which waits for the device. The memory may outlive this object.
  DeviceMemory allocate(int64_t bytes) override;
  void read(ConstBuffer from, Buffer to_host) override;
  void write(ConstBuffer from_host, Buffer to) override;

  Stream lane(Lane lane) override;
  void order(Stream before, Stream after) override;
  EventPtr make_event() override;
  void record(const EventPtr& event, Stream stream) override;
  void wait(const EventPtr& event, Stream stream) override;
  bool done(const EventPtr& event) override;
  std::optional<double> seconds_between(const EventPtr& begin, const EventPtr& end) override;
  uint64_t capture(Stream stream) override;

  void convert(ConstBuffer in, Buffer out, Stream stream) override;
  void convert_scaled(ConstBuffer in, double scale, Buffer out, Stream stream) override;
  void clear(Buffer buffer, Stream stream) override;
  void multiply(Buffer values, double factor, Stream stream) override;
  void add(ConstBuffer values, Buffer sum, Stream stream) override;

  // In mapped memory of the host, which lives at least as long as this device.
  std::shared_ptr<SquaredError> make_squared_error() override;
  void add_squared_error(ConstBuffer given, ConstBuffer decoded, const std::shared_ptr<SquaredError>& error,
                         Workspace workspace) override;

  void set_context(DeviceContext* context, PacketContext value, Stream stream) override;
  void next_step(DeviceContext* context, Stream stream) override;

  void end_step(bool skipped, Stream stream) override;

  void throw_if_faulted() override;

  void begin_range(const char* name) override;  // in the NVTX domain "isthmus"
  void end_range() override;

  PassesOfDevice passes() override;
  std::shared_ptr<std::byte> allocate_mapped(int64_t bytes) override;

 private:
  // Copies the device's present counts. Waits for that copy alone.
  kernels::DeviceCounts read_counts() override;

  struct Implementation;
  std::unique_ptr<Implementation> implementation_;
};

}  // namespace isthmus
