// All-reduce: a reduce-scatter whose result is encoded once more, gathered, and decoded by all. See docs/algorithms.md.
#include <algorithm>
#include <cstring>

#include "communicator_step.h"
#include "isthmus/communicator.h"
#include "scratch.h"
#include "unit_table.h"

namespace isthmus {

void Communicator::all_reduce_through_owners(Buffer data, double scale, const Reduction& reduction, Stream stream) {
  const ConstBuffer gradient = in_equal_chunks(data);
  const Buffer result = scratch_->take(chunk_elements(data.num_elements), accumulate_dtype(data.dtype));
  reduce_to_shard(gradient, result, scale, reduction, stream);
  const Buffer packet = encode_result(result, reduction, stream);
  const Buffer packets = scratch_->take(map_.world_size() * packet.num_elements, DataType::kByte);
  const ConstBuffer rail = gather_along_rail(packet, packets, stream);
  gather_within_node(rail, packets, stream);
  decode_result(packets, reduction, data, stream);
}

// `data`, or a copy with as many zeros at its end as make it divisible by the number of ranks.
ConstBuffer Communicator::in_equal_chunks(ConstBuffer data) {
  const int64_t padded_elements = chunk_elements(data.num_elements) * map_.world_size();
  if (padded_elements == data.num_elements) {
    return data;
  }
  current_.packed_calls = 1;
  phase_ = "pack";
  const Buffer padded = scratch_->take(padded_elements, data.dtype);
  const Buffer padding = padded.slice(data.num_elements, padded_elements - data.num_elements);
  convert(data, padded.slice(0, data.num_elements));
  std::memset(padding.data, 0, static_cast<size_t>(padding.bytes()));
  return padded;
}

Buffer Communicator::encode_result(ConstBuffer result, const Reduction& reduction, Stream stream) {
  const Step step(*this, "encode result", &CollectiveStats::encode_s);
  Codec& codec = *reduction.result_codec;
  const Buffer packet = scratch_->take(codec.packet_bytes(result.num_elements), DataType::kByte);
  const Buffer residual = codec.keeps_residual() ? reduction.unit->result_residual : Buffer{};
  current_codec_ += codec.encode(result, residual, packet, reduction.result_context(), stream);
  return packet;
}

// Every rank, the owner too, takes each chunk from its packet: the same bytes, and so the same bits, on all of them.
void Communicator::decode_result(ConstBuffer packets, const Reduction& reduction, Buffer data, Stream stream) {
  const Step step(*this, "decode result", &CollectiveStats::decode_s);
  const int64_t chunk = chunk_elements(data.num_elements);
  const int64_t packet_bytes = packets.num_elements / map_.world_size();
  const DataType decoded_dtype = accumulate_dtype(data.dtype);
  const bool all_fit = data.dtype == decoded_dtype && data.num_elements == chunk * map_.world_size();
  const Buffer stand_in = all_fit ? Buffer{} : scratch_->take(chunk, decoded_dtype);
  for (int owner = 0; owner < map_.world_size(); ++owner) {
    const int64_t begin = std::min(owner * chunk, data.num_elements);
    const Buffer place = data.slice(begin, std::min(chunk, data.num_elements - begin));
    const bool fits = place.num_elements == chunk && place.dtype == decoded_dtype;
    const Buffer decoded = fits ? place : stand_in;
    std::memset(decoded.data, 0, static_cast<size_t>(decoded.bytes()));
    current_codec_ += reduction.result_codec->decode_sum(packets.part(map_.position(owner), packet_bytes), 1, decoded,
                                                         reduction.result_context(), stream);
    if (!fits) {
      convert(decoded.slice(0, place.num_elements), place);
    }
  }
}

}  // namespace isthmus
