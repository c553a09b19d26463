// The CPU as a device: every call finishes its work before it returns.
#include "core/host.h"

#include <cmath>
#include <cstring>
#include <vector>

#include "base/aligned_memory.h"
#include "isthmus/device.h"
#include "isthmus/error.h"
#include "kernels/block/float_types.h"
#include "kernels/block/magnitudes.h"

namespace isthmus {
namespace {

class Host final : public Device {
 public:
  explicit Host(PhaseRanges ranges) : ranges_(ranges) {}

  std::string name() const override { return "cpu"; }
  bool is_host() const override { return true; }

  DeviceMemory allocate(int64_t bytes) override {
    return {allocate_aligned(bytes).release(), [](void* memory) { AlignedDelete()(static_cast<std::byte*>(memory)); }};
  }
  void read(ConstBuffer from, Buffer to_host) override { isthmus::convert(from, to_host); }
  void write(ConstBuffer from_host, Buffer to) override { isthmus::convert(from_host, to); }

  void* allocate_on_host(int64_t bytes) override { return on_host_.emplace_back(allocate_aligned(bytes)).get(); }
  void copy_to_host(ConstBuffer from, Buffer to_host, Stream /*stream*/) override { isthmus::convert(from, to_host); }

  Stream lane(Lane /*lane*/) override { return {}; }
  void order(Stream /*before*/, Stream /*after*/) override {}
  EventPtr make_event() override { return nullptr; }
  void record(const EventPtr& /*event*/, Stream /*stream*/) override {}
  void wait(const EventPtr& /*event*/, Stream /*stream*/) override {}
  bool done(const EventPtr& /*event*/) override { return true; }
  std::optional<double> seconds_between(const EventPtr& /*begin*/, const EventPtr& /*end*/) override {
    return std::nullopt;
  }
  uint64_t capture(Stream /*stream*/) override { return 0; }

  void convert(ConstBuffer in, Buffer out, Stream /*stream*/) override { isthmus::convert(in, out); }
  void convert_scaled(ConstBuffer in, double scale, Buffer out, Stream /*stream*/) override {
    isthmus::convert_scaled(in, scale, out);
  }
  void clear(Buffer buffer, Stream /*stream*/) override {
    if (buffer.num_elements > 0) {
      std::memset(buffer.data, 0, static_cast<size_t>(buffer.bytes()));
    }
  }
  void multiply(Buffer values, double factor, Stream /*stream*/) override {
    ISTHMUS_CHECK(Error, values.dtype == DataType::kFloat32, "multiply: elements of ", to_string(values.dtype),
                  ", which must be float32");
    auto* value = values.as<float>();
    for (int64_t i = 0; i < values.num_elements; ++i) {
      value[i] = limited_to_float32(value[i] * factor);
    }
  }

  void add(ConstBuffer values, Buffer sum, Stream /*stream*/) override { isthmus::accumulate(values, sum); }

  std::shared_ptr<SquaredError> make_squared_error() override { return std::make_shared<SquaredError>(); }
  int64_t squared_error_scratch_bytes() const override { return 0; }
  void add_squared_error(ConstBuffer given, ConstBuffer decoded, const std::shared_ptr<SquaredError>& error,
                         Workspace /*workspace*/) override {
    const auto* value = given.as<float>();
    const auto* received = decoded.as<float>();
    double given_squares = 0;
    double dropped_squares = 0;
    for (int64_t i = 0; i < given.num_elements; ++i) {
      if (std::isfinite(value[i]) && std::isfinite(received[i])) {
        const double dropped = double{value[i]} - double{received[i]};
        given_squares += double{value[i]} * double{value[i]};
        dropped_squares += dropped * dropped;
      }
    }
    error->given += given_squares;
    error->dropped += dropped_squares;
  }

  std::unique_ptr<Codec> make_codec(const std::string& name, const Options& options, DataType wire_dtype,
                                    int ranks_per_node) override {
    return isthmus::make_codec(name, options, wire_dtype, ranks_per_node);
  }
  DataType piece_dtype(DataType dtype) const override { return accumulate_dtype(dtype); }

  void set_contexts(DeviceContext* /*contexts*/, int /*count*/, PacketContext /*value*/, Stream /*stream*/) override {}
  void next_step(DeviceContext* /*context*/, Stream /*stream*/) override {}
  void refuse_other_units(ConstBuffer /*told*/, uint64_t /*unit_hash*/, Buffer /*packets*/, int /*num_packets*/,
                          Stream /*stream*/) override {}
  CodecCounts drop_residual_after_spike(Magnitudes* magnitudes, Buffer residual, Stream stream) override {
    CodecCounts counts;
    if (kernels::is_spike(*magnitudes)) {
      clear(residual, stream);
      counts.spikes = 1;
    }
    kernels::next_step(*magnitudes);
    return counts;
  }
  CodecCounts codec_counts() override { return {}; }
  void reset_codec_counts() override {}
  void throw_if_faulted() override {}
  void begin_range(const char* name) override { ranges_.begin(name); }
  void end_range() override { ranges_.end(); }

 private:
  const PhaseRanges ranges_;
  std::vector<AlignedMemory> on_host_;
};

}  // namespace

std::shared_ptr<Device> make_host_device(PhaseRanges ranges) { return std::make_shared<Host>(ranges); }

std::shared_ptr<Device> make_host_device() { return make_host_device(PhaseRanges()); }

}  // namespace isthmus
