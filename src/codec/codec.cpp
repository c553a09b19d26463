#include "isthmus/codec.h"

#include <cstring>

#include "isthmus/codec_type.h"

namespace isthmus {

CodecCounts& CodecCounts::operator+=(const CodecCounts& other) {
  encoded_elements += other.encoded_elements;
  kept_elements += other.kept_elements;
  held_back_elements += other.held_back_elements;
  estimated_elements += other.estimated_elements;
  non_finite_blocks += other.non_finite_blocks;
  spikes += other.spikes;
  return *this;
}

PacketContext PacketContext::of_packet(int p) const {
  PacketContext context = *this;
  context.sender = static_cast<uint16_t>(sender + p / packets_of_sender);
  return context;
}

CodecCounts HostCodec::decode_each(ConstBuffer packets, int num_packets, Buffer out, PacketContext context,
                                   Workspace workspace) {
  CodecCounts counts;
  for (int packet = 0; packet < num_packets; ++packet) {
    counts += decode(packets.part(packet, packets.num_elements / num_packets),
                     out.part(packet, out.num_elements / num_packets), context.of_packet(packet), workspace);
  }
  return counts;
}

CodecCounts HostCodec::decode(ConstBuffer packet, Buffer out, PacketContext context, Workspace workspace) {
  std::memset(out.data, 0, static_cast<size_t>(out.bytes()));
  return decode_sum(packet, 1, out, context, workspace);
}

CodecCounts HostCodec::encode_pieces(const PieceSet& set, PacketContext context, Workspace workspace) {
  CodecCounts counts;
  for (int i = 0; i < set.num_encoded(); ++i) {
    counts += encode(set.piece(i), set.residual(i), set.packet(i), context, workspace);
  }
  return counts;
}

// Memory for the sum, where it cannot be the shard's memory.
int64_t HostCodec::decode_scratch_bytes(const ShardSum& sum) const {
  const DataType sum_dtype = accumulate_dtype(sum.shard.dtype);
  return sum_dtype == sum.shard.dtype ? 0 : sum.shard.num_elements * element_bytes(sum_dtype);
}

CodecCounts HostCodec::decode_shard(const ShardSum& sum, PacketContext context, Workspace workspace) {
  const DataType sum_dtype = accumulate_dtype(sum.shard.dtype);
  const Buffer total =
      sum_dtype == sum.shard.dtype ? sum.shard : Buffer{workspace.scratch.data, sum.shard.num_elements, sum_dtype};
  CodecCounts counts;
  const auto add = [&](int first_node, int num_nodes) {
    const int64_t bytes = sum.packet_bytes();
    context.sender = static_cast<uint16_t>(first_node);
    counts +=
        decode_sum(sum.packets.slice(first_node * bytes, num_nodes * bytes), num_nodes, total, context, workspace);
  };
  convert(sum.own, total);
  add(0, sum.node);
  add(sum.node + 1, sum.num_nodes - sum.node - 1);
  convert_scaled(total, sum.scale, sum.shard);
  return counts;
}

std::unique_ptr<HostCodec> make_codec(const std::string& name, const Options& options, DataType wire_dtype,
                                      int ranks_per_node) {
  return find_codec(name).make_on_host(options, wire_dtype, ranks_per_node);
}

}  // namespace isthmus
