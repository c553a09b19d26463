// The device of a communicator's buffers: its memory, its streams, and the operations on them.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>

#include "isthmus/buffer.h"
#include "isthmus/codec.h"
#include "isthmus/device_context.h"
#include "isthmus/options.h"

namespace isthmus {

// A part of the path that has a stream of its own, so that units which are under way together overlap: one is encoded
// while another one's packets cross, and gathers do not queue behind reductions.
enum class Lane : uint8_t { kIntra, kEncode, kInter, kDecode, kGatherInter, kGatherIntra };
inline constexpr int kNumLanes = 6;

// A place in a stream, for other streams to wait for. Made by a Device.
class Event {
 public:
  virtual ~Event() = default;
};
using EventPtr = std::shared_ptr<Event>;

// Memory of a device; freed with the last owner, and not before all work that was enqueued until then is done with it.
using DeviceMemory = std::shared_ptr<void>;

// Counts of a device's codecs, which encodings and decodings cannot return.
struct DeviceCodecCounts {
  CodecCounts codec;             // without encoded_elements, which encodings know
  int64_t skipped_elements = 0;  // kept in steps that were thrown away
};

// What a lossy codec was given and what it dropped, as sums of squares. Updated asynchronously by the device; the host
// may read it at any time, without waiting.
struct SquaredError {
  std::atomic<double> given = 0;
  std::atomic<double> dropped = 0;
};
static_assert(std::atomic<double>::is_always_lock_free && sizeof(SquaredError) == 16);

// On the CPU there are no streams: all work is done when the call returns. On a GPU calls enqueue work and return;
// nothing waits for the device except read(), write() and codec_counts(), and nothing allocates but allocate(),
// make_event() and make_codec(). All but read() and write() can be captured into a CUDA graph.
// allocate() may be called while a graph is captured, and what it returns stays where it is for the graph.
//
// One thread at a time, but wait(), done(), codec_counts(), throw_if_faulted() and seconds_between() from any. Failures
// of the device throw Error.
class Device {
 public:
  virtual ~Device() = default;

  virtual std::string name() const = 0;  // "cpu", "cuda:0"
  virtual bool is_host() const = 0;

  // At least `bytes`, uninitialised, aligned to 64 bytes; lanes may use it at once. Throws std::bad_alloc.
  virtual DeviceMemory allocate(int64_t bytes) = 0;
  // To and from the host's memory, after all that was enqueued; done on return. Equal types and sizes.
  virtual void read(ConstBuffer from, Buffer to_host) = 0;
  virtual void write(ConstBuffer from_host, Buffer to) = 0;

  // The stream of a lane; null on the CPU. Their number and order of use are the same on all ranks.
  virtual Stream lane(Lane lane) = 0;
  // Later work on `after` begins when the present work of `before` is done.
  virtual void order(Stream before, Stream after) = 0;
  // Null on the CPU, where the calls that follow do nothing with it.
  virtual EventPtr make_event() = 0;
  virtual void record(const EventPtr& event, Stream stream) = 0;  // passes when the present work of `stream` is done
  virtual void wait(const EventPtr& event, Stream stream) = 0;    // never recorded: does not wait
  virtual bool done(const EventPtr& event) = 0;                   // without waiting
  // Between two recorded events, if both have passed.
  virtual std::optional<double> seconds_between(const EventPtr& begin, const EventPtr& end) = 0;
  // Which capture of a graph the stream is part of; 0: none.
  virtual uint64_t capture(Stream stream) = 0;

  // As the functions of the same name in buffer.h.
  virtual void convert(ConstBuffer in, Buffer out, Stream stream) = 0;
  virtual void convert_scaled(ConstBuffer in, double scale, Buffer out, Stream stream) = 0;
  virtual void clear(Buffer buffer, Stream stream) = 0;
  // values[i] *= factor. Products too large for float32 become the largest float32. Throws Error if values are not of
  // float32.
  virtual void multiply(Buffer values, double factor, Stream stream) = 0;
  // sum[i] += values[i] (float32).
  virtual void add(ConstBuffer values, Buffer sum, Stream stream) = 0;

  // Zeros, in memory that the host reads and this device's lanes write.
  virtual std::shared_ptr<SquaredError> make_squared_error() = 0;
  virtual int64_t squared_error_scratch_bytes() const = 0;
  // Adds given[i]^2 to `given`, and (given[i] - decoded[i])^2 to `dropped`, for all i where both are finite (float32).
  virtual void add_squared_error(ConstBuffer given, ConstBuffer decoded, const std::shared_ptr<SquaredError>& error,
                                 Workspace workspace) = 0;

  // As isthmus::make_codec(); for buffers of this device. The codec refers to the device.
  virtual std::unique_ptr<Codec> make_codec(const std::string& name, const Options& options, DataType wire_dtype,
                                            int ranks_per_node) = 0;
  // The type of the pieces that codecs of this device take from a gradient that nothing was added to:
  // accumulate_dtype(dtype), or dtype itself.
  virtual DataType piece_dtype(DataType dtype) const = 0;

  // Where codecs of this device read unit and step from, so that a captured graph counts steps: words in its memory.
  // On the CPU there are none, and these do nothing.
  virtual void set_context(DeviceContext* context, PacketContext value, Stream stream) = 0;
  virtual void next_step(DeviceContext* context, Stream stream) = 0;

  // Counts of its codecs since the last reset, as far as they are known by now; on the CPU encodings and
  // decodings return them.
  virtual DeviceCodecCounts codec_counts() = 0;
  virtual void reset_codec_counts() = 0;
  // The end of a step. If its result was thrown away, the elements that codecs sent in it are counted as skipped.
  virtual void end_step(bool skipped, Stream stream) = 0;

  // Throws the PacketError that decoding on the CPU would have thrown, once a codec of this device has found one and
  // the host can see it. Does not wait.
  virtual void throw_if_faulted() = 0;

  // Names later work of the calling thread for profilers (NVTX). Calls nest.
  virtual void begin_range(const char* name) = 0;
  virtual void end_range() = 0;
};

// The CPU.
std::shared_ptr<Device> make_host_device();

}  // namespace isthmus
