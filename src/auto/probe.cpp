#include "auto/probe.h"

#include <algorithm>
#include <chrono>
#include <cmath>
#include <memory>
#include <string>

#include "communicator/scratch.h"
#include "communicator/units/unit_table.h"
#include "isthmus/error.h"
#include "kernels/block/device.h"

namespace isthmus {
namespace {

// Of links whose speed is given instead of measured.
constexpr double kAssumedInterLatency_s = 50e-6;
constexpr double kAssumedIntraLatency_s = 10e-6;
constexpr double kGbit = 1e9 / 8;  // in bytes

// Of each of several runs, what the slowest rank took; the fastest run first.
std::vector<double> sorted_seconds(const std::function<void()>& run, int repeats, const MaxOverRanks& max_over_ranks,
                                   const ProbeClock& clock) {
  std::vector<double> nothing(1);
  max_over_ranks(nothing);  // all begin together
  std::vector<double> seconds;
  for (int i = 0; i < repeats; ++i) {
    const double begin = clock();
    run();
    seconds.push_back(clock() - begin);
  }
  max_over_ranks(seconds);
  std::sort(seconds.begin(), seconds.end());
  return seconds;
}

// Waits for what was enqueued on the device.
void finish(Device& device, ConstBuffer written) {
  if (!device.is_host()) {
    std::byte byte{};
    device.read({written.data, 1, DataType::kByte}, {&byte, 1, DataType::kByte});
  }
}

int64_t elements_of(int64_t bytes, DataType dtype) { return std::max<int64_t>(bytes / element_bytes(dtype), 1); }

// Buffers of one tier's operations.
class TierProbe {
 public:
  TierProbe(Transport& tier, Device& device, Stream stream, DataType dtype)
      : tier_(tier), device_(device), stream_(stream), dtype_(dtype), others_(tier.size() - 1), memory_(device) {}

  void reduce_scatter(int64_t bytes) {
    const int64_t part = elements_of(bytes / others_, dtype_);
    const Buffer in = zeros(part * tier_.size(), dtype_);
    const Buffer out = memory_.take(part, tier_.sum_type(dtype_).dtype);
    run(out, [&] { return tier_.reduce_scatter(in, out, stream_); });
  }
  void all_gather(int64_t bytes) {
    const int64_t part = elements_of(bytes / others_, DataType::kByte);
    const Buffer out = memory_.take(part * tier_.size(), DataType::kByte);
    const Buffer in = zeros(part, DataType::kByte);
    run(out, [&] { return tier_.all_gather(in, out, stream_); });
  }
  void all_to_all(int64_t bytes) {
    const int64_t part = elements_of(bytes / others_, DataType::kByte);
    const Buffer in = zeros(part * tier_.size(), DataType::kByte);
    const Buffer out = memory_.take(in.num_elements, DataType::kByte);
    run(out, [&] { return tier_.all_to_all(in, out, stream_); });
  }

 private:
  Buffer zeros(int64_t num_elements, DataType dtype) {
    const Buffer buffer = memory_.take(num_elements, dtype);
    device_.clear(buffer, stream_);
    return buffer;
  }
  template <typename Start>
  void run(Buffer out, const Start& start) {
    start()->wait(stream_);
    finish(device_, out);
    memory_.reset();
  }

  Transport& tier_;
  Device& device_;
  Stream stream_;
  DataType dtype_;
  int64_t others_;
  Scratch memory_;
};

Speed given(double gbit, double ranks, double latency_s) { return {latency_s, gbit * kGbit / ranks}; }

// Values that no codec finds easier than gradients: sums of four uniform ones, so that most are small.
std::vector<float> sample_values(int64_t num_elements) {
  std::vector<float> values(static_cast<size_t>(num_elements));
  uint64_t state = 1;
  for (float& value : values) {
    value = -2;
    for (int i = 0; i < 4; ++i) {
      state = state * 6364136223846793005 + 1442695040888963407;  // Knuth, TAOCP volume 2, section 3.3.4
      value += static_cast<float>(state >> 40) * 0x1p-24F;
    }
  }
  return values;
}

// One codec at work on a sample, as for another node's piece.
class CodecProbe {
 public:
  CodecProbe(Device& device, Codec& codec, DataType dtype, int64_t num_elements)
      : device_(device), codec_(codec), stream_(device.lane(Lane::kEncode)), memory_(device) {
    const std::vector<float> values = sample_values(num_elements);
    const Buffer sample = memory_.take(num_elements, DataType::kFloat32);
    device_.write({values.data(), num_elements, DataType::kFloat32}, sample);
    const DataType piece_dtype = dtype == DataType::kFloat64 ? dtype : device.piece_dtype(dtype);
    piece_ = memory_.take(num_elements, piece_dtype);
    device_.convert(sample, piece_, stream_);
    sum_ = memory_.take(num_elements, accumulate_dtype(dtype));
    device_.clear(sum_, stream_);
    if (codec_.keeps_residual()) {
      residual_ = memory_.take(num_elements, DataType::kFloat32);
      device_.clear(residual_, stream_);
    }
    packet_ = bytes(codec_.packet_bytes(num_elements));
    encode_with_ = {stream_, bytes(codec_.encode_scratch_bytes(num_elements))};
    decode_with_ = {stream_, bytes(codec_.decode_scratch_bytes(num_elements, 1))};
    contexts_ = make_contexts(device);
    context_.on_device = contexts_.get();
    if (contexts_ != nullptr) {
      device_.set_context(contexts_.get(), context_, stream_);
    }
  }

  void encode() {
    codec_.encode(piece_, residual_, packet_, context_, encode_with_);
    finish(device_, packet_);
  }
  void decode() {
    codec_.decode_sum(packet_, 1, sum_, context_, decode_with_);
    finish(device_, sum_);
  }

 private:
  Buffer bytes(int64_t count) { return count == 0 ? Buffer{} : memory_.take(count, DataType::kByte); }

  Device& device_;
  Codec& codec_;
  Stream stream_;
  Scratch memory_;
  Buffer piece_;
  Buffer residual_;
  Buffer packet_;
  Buffer sum_;
  Workspace encode_with_;
  Workspace decode_with_;
  std::shared_ptr<DeviceContext> contexts_;
  PacketContext context_;
};

// Null: not every device has every codec.
std::unique_ptr<Codec> codec_of(Candidate candidate, Device& device, DataType dtype, int ranks_per_node,
                                const Options& options) {
  const Options settings = settings_of(candidate, options);
  try {
    return device.make_codec(settings.codec, settings, dtype, ranks_per_node);
  } catch (const OptionError&) {
    return nullptr;
  }
}

}  // namespace

ProbeClock steady_clock() {
  return [] { return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count(); };
}

Speed probe_speed(const std::function<void(int64_t bytes)>& operation, const MaxOverRanks& max_over_ranks,
                  const ProbeClock& clock, const ProbeLimits& limits) {
  // The second of several: other work only slows a run, but one may be too fast, by a burst that a shaper lets through.
  const auto seconds = [&](int64_t bytes, int repeats) {
    const auto sorted = sorted_seconds([&] { operation(bytes); }, repeats, max_over_ranks, clock);
    return sorted[sorted.size() > 1 ? 1 : 0];
  };
  operation(limits.smallest_bytes);  // the first connects, and allocates
  const double least_s = seconds(limits.smallest_bytes, limits.repeats);
  int64_t bytes = limits.smallest_bytes;
  for (double last_s = least_s; last_s < limits.longest_s && 2 * bytes <= limits.largest_bytes;) {
    bytes *= 2;
    last_s = seconds(bytes, 1);
  }
  const double most_s = bytes > limits.smallest_bytes ? seconds(bytes, limits.repeats) : least_s;
  const auto more_bytes = static_cast<double>(bytes - limits.smallest_bytes);
  if (most_s <= least_s) {  // one size alone, or times that are all noise: what was seen of the largest
    return {0, static_cast<double>(bytes) / std::max(most_s, 1e-9)};
  }
  const double bytes_per_s = more_bytes / (most_s - least_s);
  return {std::max(0.0, least_s - static_cast<double>(limits.smallest_bytes) / bytes_per_s), bytes_per_s};
}

LinkSpeeds probe_tiers(const Tiers& tiers, Device& device, DataType dtype, const Options& options,
                       const ProbeClock& clock, const ProbeLimits& limits) {
  const auto max_over_ranks = [&](std::vector<double>& values) { max_over_tiers(tiers, device, values); };
  LinkSpeeds links;
  const int ranks_per_node = tiers.intra == nullptr ? 1 : tiers.intra->size();
  if (ranks_per_node > 1 && options.intra_gbit > 0) {
    links.intra_reduce = links.intra_gather = given(options.intra_gbit, 1, kAssumedIntraLatency_s);
  } else if (ranks_per_node > 1) {
    TierProbe intra(*tiers.intra, device, device.lane(Lane::kIntra), dtype);
    links.intra_reduce =
        probe_speed([&](int64_t bytes) { intra.reduce_scatter(bytes); }, max_over_ranks, clock, limits);
    links.intra_gather = probe_speed([&](int64_t bytes) { intra.all_gather(bytes); }, max_over_ranks, clock, limits);
  }
  if (tiers.inter == nullptr || tiers.inter->size() == 1) {
    return links;
  }
  if (options.inter_gbit > 0) {
    links.inter = given(options.inter_gbit, ranks_per_node, kAssumedInterLatency_s);
  } else {
    TierProbe inter(*tiers.inter, device, device.lane(Lane::kInter), dtype);
    links.inter = probe_speed([&](int64_t bytes) { inter.all_to_all(bytes); }, max_over_ranks, clock, limits);
  }
  return links;
}

ByCandidate<CodecSpeed> probe_codecs(Device& device, DataType dtype, int ranks_per_node, const Options& options,
                                     const MaxOverRanks& max_over_ranks, const ProbeClock& clock,
                                     const ProbeLimits& limits) {
  ByCandidate<CodecSpeed> speeds;
  const auto elements = static_cast<double>(limits.sample_elements);
  for (const Candidate candidate : candidates()) {
    const bool cannot = dtype == DataType::kFloat64 && !is_exact(candidate);
    if (candidate == Candidate::kWorld || cannot || prior_error(candidate, options) > error_budget(options)) {
      continue;
    }
    const std::unique_ptr<Codec> codec = codec_of(candidate, device, dtype, ranks_per_node, options);
    if (codec == nullptr) {
      continue;
    }
    CodecProbe probe(device, *codec, dtype, limits.sample_elements);
    probe.encode();  // the first finds its memory and its code cold
    probe.decode();
    const auto fastest = [&](const std::function<void()>& run) {  // nothing makes a run too fast
      return sorted_seconds(run, limits.repeats, max_over_ranks, clock).front();
    };
    const double encode_s = fastest([&] { probe.encode(); });
    const double decode_s = fastest([&] { probe.decode(); });
    speeds[candidate] = {elements / std::max(encode_s, 1e-9), elements / std::max(decode_s, 1e-9)};
  }
  return speeds;
}

}  // namespace isthmus
