// A codec of a device: a JobMaker makes its jobs, and a launcher runs them.
#pragma once

#include <memory>
#include <utility>

#include "codec/device_arguments.h"
#include "codec/device_codecs.h"

namespace isthmus {

// JobMaker touches no device, allocates nothing, and has
//
//   static constexpr const char* kName
//   int64_t packet_bytes(int64_t num_elements) const
//   bool keeps_residual() const
//   int64_t encode_scratch_bytes(int64_t num_elements) const
//   int64_t decode_scratch_bytes(const DecodeSize&) const
//   EncodeJob encode_job(const DeviceEncode&) const      both throw Error for wrong types and sizes
//   DecodeJob decode_job(const DeviceDecode&) const
//   CodecCounts known_counts(int64_t num_elements) const     counts of encode() that need no answer of the device
//
// where both jobs are alternatives of kernels::Job.
template <typename JobMaker>
class PassesCodec final : public Codec {
 public:
  PassesCodec(JobMaker maker, const PassesOfDevice& device) : maker_(std::move(maker)), device_(device) {}

  const char* name() const override { return JobMaker::kName; }
  int64_t packet_bytes(int64_t num_elements) const override { return maker_.packet_bytes(num_elements); }
  bool keeps_residual() const override { return maker_.keeps_residual(); }
  int64_t encode_scratch_bytes(int64_t num_elements) const override {
    return maker_.encode_scratch_bytes(num_elements);
  }
  int64_t decode_scratch_bytes(int64_t num_elements, int num_packets) const override {
    return maker_.decode_scratch_bytes({num_elements, num_packets, /*to_places=*/false});
  }
  int64_t decode_each_scratch_bytes(int64_t num_elements, int num_packets) const override {
    return maker_.decode_scratch_bytes({num_elements, num_packets, /*to_places=*/true});
  }

  CodecCounts encode(ConstBuffer piece, Buffer residual, Buffer packet, PacketContext context,
                     Workspace workspace) override {
    check_on_device(context);
    device_.launcher.run(maker_.encode_job({piece, residual, packet, context, device_.counts, workspace.scratch}),
                         workspace.stream);
    return maker_.known_counts(piece.num_elements);
  }

  CodecCounts decode_sum(ConstBuffer packets, int num_packets, Buffer out, PacketContext context,
                         Workspace workspace) override {
    if (num_packets > 0) {
      decode(packets, num_packets, out, /*to_places=*/false, context, workspace);
    }
    return {};
  }

  CodecCounts decode_each(ConstBuffer packets, int num_packets, Buffer out, PacketContext context,
                          Workspace workspace) override {
    decode(packets, num_packets, out, /*to_places=*/true, context, workspace);
    return {};
  }

 private:
  static void check_on_device(PacketContext context) {
    ISTHMUS_CHECK(Error, context.on_device != nullptr, "codecs of a device read unit and step from its memory");
  }

  void decode(ConstBuffer packets, int num_packets, Buffer out, bool to_places, PacketContext context,
              Workspace workspace) {
    check_on_device(context);
    device_.launcher.run(
        maker_.decode_job({packets, num_packets, out, to_places, context, device_.fault, workspace.scratch}),
        workspace.stream);
  }

  const JobMaker maker_;
  const PassesOfDevice device_;
};

template <typename JobMaker>
std::unique_ptr<Codec> make_passes_codec(JobMaker maker, const PassesOfDevice& device) {
  return std::make_unique<PassesCodec<JobMaker>>(std::move(maker), device);
}

}  // namespace isthmus
