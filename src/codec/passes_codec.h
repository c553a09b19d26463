// A codec of a device: a JobMaker (device_jobs.h) makes its jobs, and a launcher runs them.
//
// It takes scratch memory from its Workspace and keeps no state, so several jobs of one codec may run at once, each in
// its own scratch memory. Encodings return the counts that the host knows; the device counts the rest. Decodings return
// at once and throw no PacketError: faults of packets go to the device's fault (throw_if_reported()).
#pragma once

#include <cstdint>
#include <memory>
#include <utility>

#include "codec/device_jobs.h"
#include "codec/gpu_device.h"

namespace isthmus {

template <typename Maker>
class PassesCodec final : public Codec {
 public:
  PassesCodec(Maker maker, const PassesOfDevice& device) : maker_(std::move(maker)), device_(device) {}

  const char* name() const override { return Maker::kName; }
  int64_t packet_bytes(int64_t num_elements) const override { return maker_.packet_bytes(num_elements); }
  bool keeps_residual() const override { return maker_.keeps_residual(); }
  int64_t encode_scratch_bytes(const PieceSet& set) const override {
    return set.num_encoded() * scratch_bytes_of_piece(set.num_elements);
  }
  int64_t decode_scratch_bytes(const ShardSum& sum) const override {
    return maker_.decode_scratch_bytes(size_of(decode_of(sum, {}, {}), name()));
  }
  int64_t decode_each_scratch_bytes(int64_t num_elements, int num_packets) const override {
    return maker_.decode_scratch_bytes({num_elements, num_packets, /*to_places=*/true});
  }

  CodecCounts encode_pieces(const PieceSet& set, PacketContext context, Workspace workspace) override {
    const int num_pieces = set.num_encoded();
    if (num_pieces == 0) {
      return {};
    }
    check_on_device(context);
    ISTHMUS_CHECK(Error, workspace.scratch.bytes() >= encode_scratch_bytes(set), "codec ", name(),
                  ": scratch memory of ", workspace.scratch.bytes(), " bytes for ", num_pieces, " pieces");
    const int64_t residual_elements = set.residuals.num_elements;
    ISTHMUS_CHECK(Error, residual_elements == 0 || residual_elements == num_pieces * set.piece_elements(), "codec ",
                  name(), ": a residual of ", residual_elements, " elements for ", num_pieces, " pieces of ",
                  set.piece_elements());
    const ConstBuffer first_piece = set.pieces.slice(set.begin, set.num_elements);
    const Buffer first_packet = set.packets.part(0, set.packet_bytes());
    device_.launcher.run(
        maker_.encode_job({.piece = first_piece,
                           .residual = set.residual(0),
                           .packet = first_packet,
                           .context = context,
                           .counts = device_.counts,
                           .scratch = workspace.scratch,
                           .num_pieces = num_pieces,
                           .left_out = set.left_out,
                           .steps = {.piece_bytes = set.piece_elements() * element_bytes(set.pieces.dtype),
                                     .residual_elements = set.piece_elements(),
                                     .packet_bytes = set.packet_bytes(),
                                     .scratch_bytes = scratch_bytes_of_piece(set.num_elements)}}),
        workspace.stream);
    CodecCounts counts;
    for (int i = 0; i < num_pieces; ++i) {
      counts += maker_.known_counts(set.num_elements);
    }
    return counts;
  }

  CodecCounts decode_each(ConstBuffer packets, int num_packets, Buffer out, PacketContext context,
                          Workspace workspace) override {
    run({packets, num_packets, out, /*to_places=*/true, context, device_.fault, workspace.scratch}, workspace.stream);
    return {};
  }

  CodecCounts decode_shard(const ShardSum& sum, PacketContext context, Workspace workspace) override {
    run(decode_of(sum, context, workspace.scratch), workspace.stream);
    return {};
  }

 private:
  // Each piece's scratch memory begins at the alignment of the first one's.
  int64_t scratch_bytes_of_piece(int64_t num_elements) const {
    return round_up(maker_.encode_scratch_bytes(num_elements), 64);
  }

  // Packets behind the last decoded one are cut off.
  DeviceDecode decode_of(const ShardSum& sum, PacketContext context, Buffer scratch) const {
    DeviceDecode decode = {.packets = {},
                           .num_packets = sum.num_packets(),
                           .out = sum.shard,
                           .context = context,
                           .fault = device_.fault,
                           .scratch = scratch};
    decode.shard = DeviceShard{.own = sum.own, .own_place = sum.node, .scale = sum.scale};
    decode.packets = sum.packets.slice(0, num_places(decode) * sum.packet_bytes());
    return decode;
  }

  static void check_on_device(PacketContext context) {
    ISTHMUS_CHECK(Error, context.on_device != nullptr || !Maker::kReadsContext, "codec ", Maker::kName,
                  " of a device reads unit and step from its memory");
  }

  void run(const DeviceDecode& decode, Stream stream) {
    check_on_device(decode.context);
    device_.launcher.run(maker_.decode_job(decode), stream);
  }

  const Maker maker_;
  const PassesOfDevice device_;
};

template <typename Maker>
std::unique_ptr<Codec> make_passes_codec(Maker maker, Device& device) {
  return std::make_unique<PassesCodec<Maker>>(std::move(maker), dynamic_cast<GpuDevice&>(device).passes());
}

}  // namespace isthmus
