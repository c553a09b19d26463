// A codec of a device: a maker plans its jobs, without touching the device, and a launcher runs them.
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
#include "isthmus/codec.h"
#include "isthmus/error.h"

namespace isthmus {

// Maker has
//
//   kName, kAlignment   the codec's name; of packets and scratch memory, in bytes
//   kIsExact            all elements are kept, and unit and step may stand in headers alone
//   packet_bytes(num_elements), keeps_residual()
//   plan_encode(num_elements, context), plan_decode(num_elements, context)
//                       jobs with all that follows from these, except for memory: at least header and packet_bytes
//   check_piece(piece, residual, packet), check_sum(out, is_shard)
//                       throw Error for wrong types and sizes
//   carve(carver, job)  takes the codec's own scratch memory, for either job
template <typename Maker>
class PassesCodec final : public Codec {
 public:
  PassesCodec(Maker maker, const PassesOfDevice& device) : maker_(std::move(maker)), device_(device) {}

  const char* name() const override { return Maker::kName; }
  int64_t packet_bytes(int64_t num_elements) const override { return maker_.packet_bytes(num_elements); }
  bool keeps_residual() const override { return maker_.keeps_residual(); }

  int64_t encode_scratch_bytes(const PieceSet& set) const override {
    auto job = maker_.plan_encode(set.num_elements, {});
    return set.num_encoded() * bytes_of_piece(carve(job, nullptr));
  }
  int64_t decode_scratch_bytes(const ShardSum& sum) const override {
    auto job = job_of(sum, {});
    return carve(job, nullptr);
  }
  int64_t decode_each_scratch_bytes(int64_t num_elements, int num_packets) const override {
    auto job = job_of_each(num_packets, {nullptr, num_packets * num_elements, DataType::kFloat32}, {});
    return carve(job, nullptr);
  }

  CodecCounts encode_pieces(const PieceSet& set, PacketContext context, Workspace workspace) override {
    const int num_pieces = set.num_encoded();
    if (num_pieces == 0) {
      return {};
    }
    check_context(context);
    const int64_t residual_elements = set.residuals.num_elements;
    ISTHMUS_CHECK(Error, residual_elements == 0 || residual_elements == num_pieces * set.piece_elements(), "codec ",
                  name(), ": a residual of ", residual_elements, " elements for ", num_pieces, " pieces of ",
                  set.piece_elements());
    auto job = maker_.plan_encode(set.num_elements, context);
    job.context = context.on_device;
    job.piece = set.pieces.slice(set.begin, set.num_elements);
    const Buffer packet = set.packets.part(0, set.packet_bytes());
    maker_.check_piece(job.piece, set.residual(0), packet);
    check_memory("packet", packet, job.packet_bytes);
    job.packet = packet.as<uint8_t>();
    job.residual = keeps_residual() ? set.residual(0).template as<float>() : nullptr;
    job.counts = device_.counts;
    job.magnitudes = context.magnitudes;
    job.counted = context.counted;
    job.num_pieces = num_pieces;
    job.left_out = set.left_out;
    const int64_t scratch_bytes = bytes_of_piece(carve(job, workspace.scratch.data));
    check_memory("scratch memory", workspace.scratch, num_pieces * scratch_bytes);
    job.steps = {.piece_bytes = set.piece_elements() * element_bytes(set.pieces.dtype),
                 .residual_elements = set.piece_elements(),
                 .packet_bytes = set.packet_bytes(),
                 .scratch_bytes = scratch_bytes};
    device_.launcher.run(job, workspace.stream);
    const int64_t num_elements = num_pieces * set.num_elements;
    return {.encoded_elements = num_elements, .kept_elements = Maker::kIsExact ? num_elements : 0};
  }

  CodecCounts decode_each(ConstBuffer packets, int num_packets, Buffer out, PacketContext context,
                          Workspace workspace) override {
    ISTHMUS_CHECK(Error, num_packets > 0 && out.num_elements % num_packets == 0, "codec ", name(), ": ",
                  out.num_elements, " elements are no equal places for ", num_packets, " packets");
    run(job_of_each(num_packets, out, context), packets, num_packets, context, workspace);
    return {};
  }

  CodecCounts decode_shard(const ShardSum& sum, PacketContext context, Workspace workspace) override {
    run(job_of(sum, context), sum.packets, sum.num_nodes, context, workspace);
    return {};
  }

 private:
  // Each piece's scratch memory begins at the alignment of the first one's.
  static int64_t bytes_of_piece(int64_t scratch_bytes) { return round_up(scratch_bytes, 64); }

  auto job_of(const ShardSum& sum, PacketContext context) const {
    auto job = maker_.plan_decode(sum.shard.num_elements, context);
    job.num_packets = sum.num_packets();
    job.own_place = sum.node;
    job.to_places = false;
    job.own = sum.own;
    job.scale = sum.scale;
    job.out = sum.shard;
    const bool sums_apart = sum.shard.dtype != accumulate_dtype(sum.shard.dtype);
    job.sum = {nullptr, sums_apart ? sum.shard.num_elements : 0, DataType::kFloat32};  // for codecs that need it
    return job;
  }

  auto job_of_each(int num_packets, Buffer out, PacketContext context) const {
    auto job = maker_.plan_decode(out.num_elements / num_packets, context);
    job.num_packets = job.own_place = num_packets;
    job.to_places = true;
    job.own = {};
    job.scale = 1;
    job.out = out;
    job.sum = {nullptr, 0, DataType::kFloat32};
    return job;
  }

  // num_packets: how many `packets` there are, with those that are left out.
  template <typename Job>
  void run(Job job, ConstBuffer packets, int num_packets, PacketContext context, Workspace workspace) {
    check_context(context);
    maker_.check_sum(job.out, !job.to_places);
    check_packets(name(), packets, num_packets, job.packet_bytes);
    check_memory("packets", packets, packets.bytes());
    check_memory("scratch memory", workspace.scratch, carve(job, workspace.scratch.data));
    job.senders = {static_cast<uint64_t>(context.sender), context.packets_of_sender};
    job.context = context.on_device;
    job.packets = packets.as<uint8_t>();
    job.counted = context.counted;
    if (job.sum.data == nullptr) {
      job.sum = job.out;
    }
    device_.launcher.run(job, workspace.stream);
  }

  // Returns the bytes used.
  template <typename Job>
  static int64_t carve(Job& job, void* memory) {
    Carver carver(memory);
    carve_shared(carver, job);
    Maker::carve(carver, job);
    return carver.bytes();
  }

  static void check_context(PacketContext context) {
    ISTHMUS_CHECK(Error, context.on_device != nullptr || Maker::kIsExact, "codec ", Maker::kName,
                  " of a device reads unit and step from its memory");
  }
  static void check_memory(const char* what, ConstBuffer buffer, int64_t needed) {
    check_device_memory(Maker::kName, what, buffer, needed, Maker::kAlignment);
  }

  const Maker maker_;
  const PassesOfDevice device_;
};

template <typename Maker>
std::unique_ptr<Codec> make_passes_codec(Maker maker, Device& device) {
  return std::make_unique<PassesCodec<Maker>>(std::move(maker), dynamic_cast<GpuDevice&>(device).passes());
}

}  // namespace isthmus
