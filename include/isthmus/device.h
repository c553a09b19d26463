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

// A part of the path that has its own stream, so that units overlap: one is encoded while another's packets cross, and
// gathers do not queue behind reductions.
enum class Lane : uint8_t {
  kIntra,
  kEncode,
  kInter,
  kDecode,
  kGatherInter,
  kGatherIntra,
  kEncodeWeights,
  kDecodeWeights
};
inline constexpr int kNumLanes = 8;

// A place in a stream that other streams can wait for. A Device makes it.
class Event {
 public:
  virtual ~Event() = default;
};
using EventPtr = std::shared_ptr<Event>;

// Device memory. It is freed with its last owner, once all work enqueued by then is done with it.
using DeviceMemory = std::shared_ptr<void>;

// Sums of squares: what a lossy codec was given, and what it dropped. The device updates them asynchronously; the host
// may read them at any time without waiting.
struct SquaredError {
  std::atomic<double> given = 0;
  std::atomic<double> dropped = 0;
};
static_assert(std::atomic<double>::is_always_lock_free && sizeof(SquaredError) == 16);

// On the CPU there are no streams: all work is done when the call returns. On a GPU calls enqueue work and return. Only
// read(), write() and codec_counts() wait for the device; only allocate(), allocate_on_host(),
// make_event() and make_codec() allocate. All
// but read() and write() can be captured into a CUDA graph. Memory that is allocated during a capture stays where it is
// for the graph.
//
// One thread at a time calls it, but any thread may call wait(), done(), codec_counts(), throw_if_faulted() and
// seconds_between(). A failing device throws Error.
class Device {
 public:
  virtual ~Device() = default;

  virtual std::string name() const = 0;  // "cpu", "cuda:0"
  virtual bool is_host() const = 0;

  // At least `bytes` of uninitialised memory, aligned to 64 bytes; lanes may use it at once. Throws std::bad_alloc.
  virtual DeviceMemory allocate(int64_t bytes) = 0;
  // Copies from or to host memory after all enqueued work, and waits for the copy. Types and sizes are equal.
  virtual void read(ConstBuffer from, Buffer to_host) = 0;
  virtual void write(ConstBuffer from_host, Buffer to) = 0;

  // Host memory that copy_to_host() writes to; the device keeps it for as long as it lives. Throws std::bad_alloc.
  virtual void* allocate_on_host(int64_t bytes) = 0;
  // Copies to such memory, as work of `stream`.
  virtual void copy_to_host(ConstBuffer from, Buffer to_host, Stream stream) = 0;

  // The stream of a lane; null on the CPU. All ranks have the same lanes and use them in the same order.
  virtual Stream lane(Lane lane) = 0;
  // Later work on `after` begins when the present work of `before` is done.
  virtual void order(Stream before, Stream after) = 0;
  // A new event; null on the CPU, where the four calls below do nothing with it.
  virtual EventPtr make_event() = 0;
  virtual void record(const EventPtr& event, Stream stream) = 0;  // passes when the present work of `stream` is done
  virtual void wait(const EventPtr& event, Stream stream) = 0;    // an event that was never recorded does not wait
  virtual bool done(const EventPtr& event) = 0;                   // without waiting
  // The time between two recorded events, if both have passed.
  virtual std::optional<double> seconds_between(const EventPtr& begin, const EventPtr& end) = 0;
  // The number of the graph capture that the stream belongs to; 0: none.
  virtual uint64_t capture(Stream stream) = 0;

  // These do what the functions of the same name in buffer.h do.
  virtual void convert(ConstBuffer in, Buffer out, Stream stream) = 0;
  virtual void convert_scaled(ConstBuffer in, double scale, Buffer out, Stream stream) = 0;
  virtual void clear(Buffer buffer, Stream stream) = 0;
  // values[i] *= factor; values are float32, else it throws Error. A product too large for float32 becomes its maximum.
  virtual void multiply(Buffer values, double factor, Stream stream) = 0;
  // sum[i] += values[i] (float32).
  virtual void add(ConstBuffer values, Buffer sum, Stream stream) = 0;

  // Makes sums of zero, in memory that the host reads and this device's lanes write.
  virtual std::shared_ptr<SquaredError> make_squared_error() = 0;
  virtual int64_t squared_error_scratch_bytes() const = 0;
  // Adds given[i]^2 to `given`, and (given[i] - decoded[i])^2 to `dropped`, for all i where both are finite (float32).
  virtual void add_squared_error(ConstBuffer given, ConstBuffer decoded, const std::shared_ptr<SquaredError>& error,
                                 Workspace workspace) = 0;

  // isthmus::make_codec() for buffers of this device. The codec keeps a reference to the device.
  virtual std::unique_ptr<Codec> make_codec(const std::string& name, const Options& options, DataType wire_dtype,
                                            int ranks_per_node) = 0;
  // The type in which this device's codecs take pieces of a gradient that nothing was added to:
  // accumulate_dtype(dtype), or dtype itself.
  virtual DataType piece_dtype(DataType dtype) const = 0;

  // Sets words in device memory. From such words codecs read unit and step, so that a captured graph counts steps. Does
  // nothing on the CPU, which has none.
  virtual void set_contexts(DeviceContext* contexts, int count, PacketContext value, Stream stream) = 0;
  virtual void next_step(DeviceContext* context, Stream stream) = 0;

  // told: a DeviceContext of each rank whose parts were summed, with its number in the step's place. Where one has
  // another unit than unit_hash, throw_if_faulted() will say so, and the headers of the packets, which lie one behind
  // the other, become another unit's. Does nothing on the CPU, where Transport::compare_units() does it.
  virtual void refuse_other_units(ConstBuffer told, uint64_t unit_hash, Buffer packets, int num_packets,
                                  Stream stream) = 0;

  // Called when all of a step is encoded that `magnitudes` was shown. If values were far larger than in the steps
  // before, the residual (float32) becomes zeros: the step will be thrown away, or is worth more than what is left of
  // it. Returns what is known of it at once.
  virtual CodecCounts drop_residual_after_spike(Magnitudes* magnitudes, Buffer residual, Stream stream) = 0;

  // What its codecs counted since the last reset, as far as it is known by now, without encoded_elements. On the CPU
  // the calls return their counts instead.
  virtual CodecCounts codec_counts() = 0;
  virtual void reset_codec_counts() = 0;

  // Throws the PacketError that the CPU would have thrown while decoding, once a codec found it and the host can see
  // it. Does not wait.
  virtual void throw_if_faulted() = 0;

  // Names later work of the calling thread for profilers (NVTX). Ranges nest.
  virtual void begin_range(const char* name) = 0;
  virtual void end_range() = 0;
};

std::shared_ptr<Device> make_host_device();

}  // namespace isthmus
