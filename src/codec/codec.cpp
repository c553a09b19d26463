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
  return *this;
}

PacketContext PacketContext::of_packet(int p) const {
  PacketContext context = *this;
  context.sender = static_cast<uint16_t>(sender + p / packets_of_sender);
  return context;
}

CodecCounts Codec::decode_each(ConstBuffer packets, int num_packets, Buffer out, PacketContext context,
                               Workspace workspace) {
  CodecCounts counts;
  for (int packet = 0; packet < num_packets; ++packet) {
    const Buffer part = out.part(packet, out.num_elements / num_packets);
    std::memset(part.data, 0, static_cast<size_t>(part.bytes()));
    counts += decode_sum(packets.part(packet, packets.num_elements / num_packets), 1, part, context.of_packet(packet),
                         workspace);
  }
  return counts;
}

std::unique_ptr<Codec> make_codec(const std::string& name, const Options& options, DataType wire_dtype,
                                  int ranks_per_node) {
  return find_codec(name).make_on_host(options, wire_dtype, ranks_per_node);
}

}  // namespace isthmus
