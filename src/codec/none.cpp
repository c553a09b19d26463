#include "codec/none.h"

#include <algorithm>
#include <bit>
#include <cstring>

#include "codec/packet_header.h"
#include "isthmus/error.h"

namespace isthmus {
namespace {

PacketHeader make_header(DataType wire_dtype, int divisor, int64_t num_elements, PacketContext context) {
  PacketHeader header;
  header.codec = CodecId::kNone;
  header.dtype = wire_dtype;
  header.unit_hash = context.unit_hash;
  header.step = context.step;
  header.num_elements = static_cast<uint64_t>(num_elements);
  header.settings = static_cast<uint64_t>(divisor);
  return header;
}

// sum += values * factor, through a tile that stays in the cache.
void accumulate_scaled(ConstBuffer values, double factor, Buffer sum) {
  constexpr int64_t kTileElements = 1024;
  alignas(64) float tile[kTileElements];
  for (int64_t begin = 0; begin < values.num_elements; begin += kTileElements) {
    const int64_t count = std::min(kTileElements, values.num_elements - begin);
    const Buffer scaled{tile, count, DataType::kFloat32};
    convert_scaled(values.slice(begin, count), factor, scaled);
    accumulate(scaled, sum.slice(begin, count));
  }
}

}  // namespace

NoneCodec::NoneCodec(DataType wire_dtype, int ranks_per_node) : wire_dtype_(wire_dtype) {
  ISTHMUS_CHECK(Error, wire_dtype != DataType::kByte, "codec none sends floating types, not ", to_string(wire_dtype));
  ISTHMUS_CHECK(Error, ranks_per_node >= 1, "codec none: ", ranks_per_node, " ranks a node");
  if (wire_dtype == DataType::kFloat16) {
    divisor_ = static_cast<int>(std::bit_ceil(static_cast<unsigned>(ranks_per_node)));
  }
}

int64_t NoneCodec::packet_bytes(int64_t num_elements) const {
  constexpr int64_t kHeaderBytes = sizeof(PacketHeader);
  return kHeaderBytes + (num_elements * element_bytes(wire_dtype_) + 7) / 8 * 8;
}

CodecCounts NoneCodec::encode(ConstBuffer piece, Buffer /*residual*/, Buffer packet, PacketContext context,
                              Stream /*stream*/) {
  const PacketHeader header = make_header(wire_dtype_, divisor_, piece.num_elements, context);
  std::byte* bytes = packet.as<std::byte>();
  std::memset(bytes + packet.num_elements - 8, 0, 8);  // the padding; any of it that holds values is written below
  std::memcpy(bytes, &header, sizeof(header));
  const Buffer values{bytes + sizeof(header), piece.num_elements, wire_dtype_};
  if (divisor_ == 1) {
    convert(piece, values);
  } else {
    convert_scaled(piece, 1.0 / divisor_, values);
  }
  CodecCounts counts;
  counts.encoded_elements = counts.kept_elements = piece.num_elements;
  return counts;
}

CodecCounts NoneCodec::decode_sum(ConstBuffer packets, int num_packets, Buffer out, PacketContext context,
                                  Stream /*stream*/) {
  const PacketHeader expected = make_header(wire_dtype_, divisor_, out.num_elements, context);
  const int64_t packet_bytes = this->packet_bytes(out.num_elements);
  for (int packet = 0; packet < num_packets; ++packet) {
    const std::byte* bytes = packets.part(packet, packet_bytes).as<std::byte>();
    read_header(bytes, expected);
    const ConstBuffer values{bytes + sizeof(PacketHeader), out.num_elements, wire_dtype_};
    if (divisor_ == 1) {
      accumulate(values, out);
    } else {
      accumulate_scaled(values, divisor_, out);
    }
  }
  return {};
}

}  // namespace isthmus
