#include "kernels/none/host.h"

#include <algorithm>
#include <bit>
#include <cstring>

#include "codec/packet_sizes.h"
#include "isthmus/error.h"
#include "isthmus/packet_header.h"
#include "kernels/checksum/cpu.h"

namespace isthmus {
namespace {

// Values are converted and checksummed tile by tile, so that the checksum finds them in the cache. Values that stay
// float32 are copied in the same loop. A tile is a whole number of checksum words in every type.
constexpr int64_t kTileElements = 2048;

template <typename Visit>
void for_each_tile(int64_t first, int64_t num_elements, const Visit& visit) {
  for (int64_t begin = first; begin < num_elements; begin += kTileElements) {
    visit(begin, std::min(kTileElements, num_elements - begin));
  }
}

constexpr int64_t kWordFloats = kernels::kChecksumWordBytes / 4;

// Copies float32 values to a packet and adds them to its checksum, as whole words. Returns how many values it took.
int64_t copy_words(ConstBuffer values, Buffer packet_values, Checksum& checksum) {
  const int64_t num_words = values.num_elements / kWordFloats;
  checksum.copy(values.data, packet_values.data, num_words * kernels::kChecksumWordBytes);
  return num_words * kWordFloats;
}

// sum += values * factor.
void accumulate_scaled(ConstBuffer values, double factor, Buffer sum) {
  alignas(64) float tile[kTileElements];
  const Buffer scaled{tile, values.num_elements, DataType::kFloat32};
  convert_scaled(values, factor, scaled);
  accumulate(scaled, sum);
}

}  // namespace

NoneSettings::NoneSettings(DataType dtype, int ranks_per_node) : wire_dtype(dtype) {
  ISTHMUS_CHECK(Error, dtype != DataType::kByte, "codec none sends floating types, not ", to_string(dtype));
  ISTHMUS_CHECK(Error, ranks_per_node >= 1, "codec none: ", ranks_per_node, " ranks a node");
  if (dtype == DataType::kFloat16) {
    divisor = static_cast<int>(std::bit_ceil(static_cast<unsigned>(ranks_per_node)));
  }
}

int64_t NoneSettings::packet_bytes(int64_t num_elements) const {
  return static_cast<int64_t>(sizeof(PacketHeader)) + round_up(num_elements * element_bytes(wire_dtype), 8);
}

PacketHeader NoneSettings::header(int64_t num_elements, PacketContext context) const {
  return make_header(CodecId::kNone, wire_dtype, num_elements, static_cast<uint64_t>(divisor), context);
}

CodecCounts NoneCodec::encode(ConstBuffer piece, Buffer /*residual*/, Buffer packet, PacketContext context,
                              Workspace /*workspace*/) {
  check_packets(name(), packet, 1, packet_bytes(piece.num_elements));
  std::byte* bytes = packet.as<std::byte>();
  std::memset(bytes + packet.num_elements - 8, 0, 8);  // clears the padding; values in this word are written below
  const DataType wire_dtype = settings_.wire_dtype;
  const int divisor = settings_.divisor;
  const Buffer values{bytes + sizeof(PacketHeader), piece.num_elements, wire_dtype};
  Checksum checksum;
  const bool is_copied = piece.dtype == DataType::kFloat32 && wire_dtype == DataType::kFloat32;
  const int64_t copied = is_copied ? copy_words(piece, values, checksum) : 0;
  for_each_tile(copied, piece.num_elements, [&](int64_t begin, int64_t count) {
    const Buffer tile = values.slice(begin, count);
    if (divisor == 1) {
      convert(piece.slice(begin, count), tile);
    } else {
      convert_scaled(piece.slice(begin, count), 1.0 / divisor, tile);
    }
    checksum.add(tile.data, round_up(tile.bytes(), 8));
  });
  PacketHeader header = settings_.header(piece.num_elements, context);
  header.checksum = checksum.value();
  std::memcpy(bytes, &header, sizeof(header));
  return {.encoded_elements = piece.num_elements, .kept_elements = piece.num_elements};
}

CodecCounts NoneCodec::decode_sum(ConstBuffer packets, int num_packets, Buffer out, PacketContext context,
                                  Workspace /*workspace*/) {
  const DataType wire_dtype = settings_.wire_dtype;
  const int divisor = settings_.divisor;
  const int64_t packet_bytes = this->packet_bytes(out.num_elements);
  check_packets(name(), packets, num_packets, packet_bytes);
  for (int packet = 0; packet < num_packets; ++packet) {
    const std::byte* bytes = packets.part(packet, packet_bytes).as<std::byte>();
    const PacketHeader header = read_header(bytes, settings_.header(out.num_elements, context.of_packet(packet)));
    const ConstBuffer values{bytes + sizeof(PacketHeader), out.num_elements, wire_dtype};
    Checksum checksum;
    for_each_tile(0, out.num_elements, [&](int64_t begin, int64_t count) {
      const ConstBuffer tile = values.slice(begin, count);
      if (divisor == 1) {
        accumulate(tile, out.slice(begin, count));
      } else {
        accumulate_scaled(tile, divisor, out.slice(begin, count));
      }
      checksum.add(tile.data, round_up(tile.bytes(), 8));
    });
    if (checksum.value() != header.checksum) {
      throw_wrong_checksum(header, checksum.value());
    }
  }
  return {};
}

}  // namespace isthmus
