// All-reduce: a reduce-scatter whose result is encoded once more, gathered, and decoded by all. See docs/algorithms.md.
#include <algorithm>

#include "communicator/scratch.h"
#include "communicator/step.h"
#include "communicator/units/unit_table.h"
#include "isthmus/communicator.h"

namespace isthmus {

void Communicator::all_reduce_through_owners(Buffer data, const Reduction& reduction) {
  const ConstBuffer gradient = in_equal_chunks(data);
  const Buffer result = take_scratch(chunk_elements(data.num_elements), accumulate_dtype(data.dtype));
  reduce_to_shard(gradient, result, reduction);
  const Buffer packet = encode_result(result, reduction);
  const Buffer packets = take_scratch(map_.world_size() * packet.num_elements, DataType::kByte);
  const ConstBuffer rail = gather_along_rail(packet, packets);
  gather_within_node(rail, packets);
  decode_result(packets, reduction, data);
}

// `data`, or a copy with as many zeros at its end as make it divisible by the number of ranks.
ConstBuffer Communicator::in_equal_chunks(ConstBuffer data) {
  const int64_t padded_elements = chunk_elements(data.num_elements) * map_.world_size();
  if (padded_elements == data.num_elements) {
    return data;
  }
  current_.packed_calls = 1;
  phase_ = "pack";
  enter(Lane::kIntra);
  const Buffer padded = take_scratch(padded_elements, data.dtype);
  const Buffer padding = padded.slice(data.num_elements, padded_elements - data.num_elements);
  device_->convert(data, padded.slice(0, data.num_elements), here_);
  device_->clear(padding, here_);
  return padded;
}

Buffer Communicator::encode_result(ConstBuffer result, const Reduction& reduction) {
  const Step step(*this, "encode result", Lane::kDecode, &CollectiveStats::encode_s);
  Codec& codec = *reduction.result_codec;
  const Buffer packet = take_scratch(codec.packet_bytes(result.num_elements), DataType::kByte);
  const Buffer residual = has_residual(reduction) ? reduction.unit->result_residual : Buffer{};
  const Workspace with = workspace(codec.encode_scratch_bytes(result.num_elements));
  const PacketContext context = context_for(reduction, PacketUse::kResult, node());
  encode_packet(codec, result, residual, packet, reduction, context, with);
  count_packets(reduction, PacketUse::kResult);
  return packet;
}

// Every rank, the owner too, takes each chunk from its packet: the same bytes, and so the same bits, on all of them. A
// GPU decodes all packets at once, the CPU one after the other, which takes less memory.
void Communicator::decode_result(ConstBuffer packets, const Reduction& reduction, Buffer data) {
  const Step step(*this, "decode result", Lane::kDecode, &CollectiveStats::decode_s);
  Codec& codec = *reduction.result_codec;
  const int num_packets = map_.world_size();
  const int at_once = device_->is_host() ? 1 : num_packets;
  const int64_t chunk = chunk_elements(data.num_elements);
  const int64_t packet_bytes = packets.num_elements / num_packets;
  const DataType decoded_dtype = accumulate_dtype(data.dtype);
  const bool all_fit = data.dtype == decoded_dtype && data.num_elements == chunk * num_packets &&
                       (at_once == 1 || map_.block_placement());
  const Buffer stand_in = all_fit ? Buffer{} : take_scratch(at_once * chunk, decoded_dtype);
  const Workspace with = workspace(codec.decode_each_scratch_bytes(chunk, at_once));
  PacketContext context = context_for(reduction, PacketUse::kArrivedResult, 0);
  context.packets_of_sender = ranks_per_node();
  for (int first = 0; first < num_packets; first += at_once) {
    const Buffer place = place_of_packets(first, at_once, chunk, data);
    const bool fits = place.num_elements == at_once * chunk && place.dtype == decoded_dtype;
    const Buffer decoded = fits ? place : stand_in;
    current_codec_ += codec.decode_each(packets.slice(first * packet_bytes, at_once * packet_bytes), at_once, decoded,
                                        context.of_packet(first), with);
    for (int packet = 0; !fits && packet < at_once; ++packet) {
      const Buffer own_place = place_of_packets(first + packet, 1, chunk, data);
      device_->convert(decoded.part(packet, chunk).slice(0, own_place.num_elements), own_place, here_);
    }
  }
  count_packets(reduction, PacketUse::kArrivedResult);
}

// Where the chunks of `count` packets belong, which lie node by node; empty if they do not lie side by side there. The
// last chunks may be shorter, or empty.
Buffer Communicator::place_of_packets(int first, int count, int64_t chunk, Buffer data) const {
  if (count > 1 && !map_.block_placement()) {
    return {};
  }
  const int owner = map_.rank(first / ranks_per_node(), first % ranks_per_node());
  const int64_t begin = std::min(owner * chunk, data.num_elements);
  return data.slice(begin, std::min(count * chunk, data.num_elements - begin));
}

}  // namespace isthmus
