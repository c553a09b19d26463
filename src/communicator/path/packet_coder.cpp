#include "communicator/path/packet_coder.h"

namespace isthmus {

PacketContext PacketCoder::context_for(const ReductionPlan& plan, PacketUse use, int sender, uint8_t segment) const {
  PacketContext context = context_of(plan.hash, plan.step, use);
  context.segment = segment;
  context.sender = static_cast<uint16_t>(sender);
  context.on_device = context_on_device(plan, use);
  if (plan.has_residual() && !plan.sends_residual) {
    context.magnitudes = (use == PacketUse::kPiece ? plan.unit->pieces : plan.unit->result).magnitudes.get();
  }
  return context;
}

void PacketCoder::end_step(Run& run, const ReductionPlan& plan, const Residual& residual) const {
  if (residual.values.num_elements > 0 && !plan.sends_residual) {
    run.codec_counts += device_.drop_residual_after_spike(residual.magnitudes.get(), residual.values, run.tail());
  }
}

void PacketCoder::count_packets(const Run& run, const ReductionPlan& plan, PacketUse use) const {
  if (DeviceContext* const words = context_on_device(plan, use)) {
    device_.next_step(words, run.tail());
  }
}

DeviceContext* PacketCoder::context_on_device(const ReductionPlan& plan, PacketUse use) {
  return plan.has_state && plan.unit->contexts != nullptr ? plan.unit->contexts.get() + static_cast<int>(use) : nullptr;
}

void PacketCoder::encode_pieces(Run& run, const ReductionPlan& plan, const PieceSet& set, PacketContext context,
                                bool is_last) const {
  Codec& codec = *plan.codecs.pieces;
  if (set.num_encoded() > 0 && !plan.sends_residual && !plan.measures) {
    context.counted = is_last ? context_on_device(plan, PacketUse::kPiece) : nullptr;
    run.codec_counts += codec.encode_pieces(set, context, run.workspace(codec.encode_scratch_bytes(set)));
  } else {
    const Workspace workspace = run.workspace(codec.encode_scratch_bytes({.num_elements = set.num_elements}));
    for (int i = 0; i < set.num_encoded(); ++i) {
      encode(run, plan, codec, set.piece(i), set.residual(i), set.packet(i), context, workspace);
    }
    if (is_last) {
      count_packets(run, plan, PacketUse::kPiece);
    }
  }
  if (is_last && plan.has_state) {
    end_step(run, plan, plan.unit->pieces);
  }
}

void PacketCoder::decode_shard(Run& run, const ReductionPlan& plan, const ShardSum& sum, PacketContext context,
                               bool is_last) const {
  if (sum.num_packets() > 0) {
    context.counted = is_last ? context_on_device(plan, PacketUse::kArrivedPiece) : nullptr;
    const Workspace workspace = run.workspace(plan.codecs.pieces->decode_scratch_bytes(sum));
    run.codec_counts += plan.codecs.pieces->decode_shard(sum, context, workspace);
    return;
  }
  device_.convert_scaled(sum.own, sum.scale, sum.shard, run.tail());
  if (is_last) {
    count_packets(run, plan, PacketUse::kArrivedPiece);
  }
}

void PacketCoder::encode(Run& run, const ReductionPlan& plan, Codec& codec, ConstBuffer values, Buffer residual,
                         Buffer packet, const PacketContext& context, Workspace workspace) const {
  ConstBuffer given;
  if (plan.sends_residual || plan.measures) {
    given = in_float32(run, values, residual);
  }
  if (plan.sends_residual) {
    device_.clear(residual, run.tail());
    values = given;
    residual = {};
  }
  run.codec_counts += codec.encode_pieces(PieceSet::of_one(values, residual, packet), context, workspace);
  if (plan.measures) {
    measure_error(run, plan, codec, given, packet, context);
  }
}

// values + residual. The residual is empty or has as many elements.
Buffer PacketCoder::in_float32(Run& run, ConstBuffer values, ConstBuffer residual) const {
  const Buffer sum = run.take(values.num_elements, DataType::kFloat32);
  device_.convert(values, sum, run.tail());
  if (residual.num_elements > 0) {
    device_.add(residual, sum, run.tail());
  }
  return sum;
}

// Decodes the packet again on this rank, to compare it with the values.
void PacketCoder::measure_error(Run& run, const ReductionPlan& plan, Codec& codec, ConstBuffer given,
                                ConstBuffer packet, const PacketContext& context) const {
  const Buffer decoded = run.take(given.num_elements, DataType::kFloat32);
  codec.decode_each(packet, 1, decoded, context, run.workspace(codec.decode_each_scratch_bytes(given.num_elements, 1)));
  device_.add_squared_error(given, decoded, plan.unit->error, run.workspace(device_.squared_error_scratch_bytes()));
}

}  // namespace isthmus
