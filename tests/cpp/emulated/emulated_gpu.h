// A GPU for tests of work on streams, on any machine: each stream is a thread that works off a queue, each event a
// place in a queue. Streams do their work with the CPU's arithmetic and with the passes of the device codecs.
//
// Complains about everything that would go wrong on a GPU, or could go wrong with other timing. A complaint fails the
// test in which the GPU is destroyed:
// - work that uses the same memory as other work, without an order between the two (stream_order.h);
// - work on memory that is the host's, was freed, or ends too early (memory of the device, touched by the host, ends
//   the test at once), and whatever is written past the end of a block;
// - in captures of graphs: waiting for what is not part of the capture, lanes that are not joined at its end, and all
//   that waits for the device.
#pragma once

#include <chrono>
#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

#include "codec/gpu_device.h"
#include "tests/cpp/emulated/emulated_device.h"
#include "tests/cpp/emulated/emulated_memory.h"
#include "tests/cpp/emulated/emulated_stream.h"
#include "tests/cpp/support/stream_order.h"

namespace isthmus::test {

class EmulatedGraph;

// As for any Device: one thread at a time, except for codec_counts(), throw_if_faulted() and seconds_between().
class EmulatedGpu final : public GpuDevice {
 public:
  using Work = EmulatedStream::Work;

  // seed: of the pauses between pieces of work. cut: of passes into groups; else each is one thread's.
  explicit EmulatedGpu(uint32_t seed = 1, std::optional<EmulatedDevice::Cut> cut = {});
  // Finishes all work first.
  ~EmulatedGpu() override;

  // A stream of the caller's, for as long as the GPU lives.
  Stream make_stream();
  // The host waits for all that is on the stream, or on all.
  void synchronize(Stream stream);
  void synchronize();
  // A pause before each piece of work on this stream, from now on.
  void slow_down(Stream stream, std::chrono::microseconds pause);

  // As cudaStreamBeginCapture: what is enqueued on the stream, and on those that are ordered after it, is not done but
  // recorded.
  void begin_capture(Stream stream);
  std::shared_ptr<EmulatedGraph> end_capture(Stream stream);
  // Does once what was recorded, as work of `stream`.
  void replay(const std::shared_ptr<EmulatedGraph>& graph, Stream stream);

  // Runs jobs on its streams.
  DeviceLauncher& launcher() { return passes().launcher; }
  // Does work on a stream, which uses this memory of the device.
  void enqueue(Stream stream, const std::string& what, const std::vector<MemoryUse>& uses, Work work);
  // Where work finds what is at an address of the device.
  const EmulatedMemory& memory() const { return *memory_; }

  void complain(const std::string& text);
  // What it has complained about since the last call, and now will not fail for.
  std::vector<std::string> take_complaints();
  // Names of all ranges that were begun, in order.
  const std::vector<std::string>& ranges() const { return ranges_; }

  std::string name() const override { return "emulated"; }
  DeviceMemory allocate(int64_t bytes) override { return memory_->allocate(bytes); }
  void read(ConstBuffer from, Buffer to_host) override;
  void write(ConstBuffer from_host, Buffer to) override;
  void* allocate_on_host(int64_t bytes) override { return on_host_.emplace_back(allocate_aligned(bytes)).get(); }
  void copy_to_host(ConstBuffer from, Buffer to_host, Stream stream) override;
  Stream lane(Lane lane) override { return lanes_[static_cast<size_t>(lane)]; }
  void order(Stream before, Stream after) override;
  EventPtr make_event() override;
  void record(const EventPtr& event, Stream stream) override;
  void wait(const EventPtr& event, Stream stream) override;
  bool done(const EventPtr& event) override;
  std::optional<double> seconds_between(const EventPtr& begin, const EventPtr& end) override;
  uint64_t capture(Stream stream) override;
  void clear(Buffer buffer, Stream stream) override;
  // Lives as long as this GPU, for work that is under way.
  std::shared_ptr<SquaredError> make_squared_error() override {
    return squared_errors_.emplace_back(std::make_shared<SquaredError>());
  }
  void throw_if_faulted() override;
  void begin_range(const char* name) override;
  void end_range() override;
  PassesOfDevice passes() override;

 private:
  class Launcher;
  struct StreamState;
  struct Event;

  void copy(ConstBuffer in, Buffer out, Stream stream) override;
  // Finishes all work first.
  kernels::DeviceCounts read_counts() override;

  StreamState& state_of(Stream stream);
  Stream add_stream(const std::string& name);
  void complain_about(const std::vector<std::string>& conflicts);
  void check_uses(const std::string& what, const std::vector<MemoryUse>& uses);
  void join(StreamState& stream, const Event& event);
  void finish_all_work();
  void complain_in_capture(const std::string& what);

  std::shared_ptr<EmulatedMemory> memory_ = std::make_shared<EmulatedMemory>();
  std::unique_ptr<Launcher> launcher_;
  std::vector<AlignedMemory> on_host_;
  std::vector<std::shared_ptr<SquaredError>> squared_errors_;
  const uint32_t seed_;
  StreamOrder order_;
  std::map<int, std::unique_ptr<EmulatedStream>> graph_streams_;  // that replays run on
  std::vector<std::unique_ptr<StreamState>> streams_;             // the null stream first
  std::vector<Stream> lanes_;
  uint64_t num_captures_ = 0;
  int num_running_captures_ = 0;
  std::vector<std::string> ranges_;
  int open_ranges_ = 0;

  std::mutex mutex_;  // guards what follows
  std::vector<std::string> complaints_;
};

}  // namespace isthmus::test
