// Packets of codec none, in all types: a packet is accepted if and only if it is what was sent.
#include <cmath>

#include "codec/none/host.h"
#include "packets.h"

using namespace isthmus;
using namespace isthmus::fuzz;

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  constexpr int64_t kMostElements = 5000;  // more than two tiles
  FuzzedDataProvider provider(data, size);
  const auto dtype = static_cast<DataType>(provider.ConsumeIntegralInRange<int64_t>(1, 4));
  const auto ranks_per_node = static_cast<int>(provider.ConsumeIntegralInRange<int64_t>(1, 9));
  const int64_t num_elements = consume_size(provider, kMostElements);
  const auto num_packets = static_cast<int>(provider.ConsumeIntegralInRange<int64_t>(1, 3));
  const int64_t damaged = provider.ConsumeIntegralInRange<int64_t>(0, num_packets - 1);
  const uint32_t seed = provider.ConsumeIntegral<uint16_t>();
  const PacketContext context = consume_context(provider, seed);

  NoneCodec codec(dtype, ranks_per_node);
  const DataType sum_dtype = accumulate_dtype(dtype);
  const int64_t packet_bytes = codec.packet_bytes(num_elements);
  const Bytes packets(num_packets * packet_bytes);
  const Bytes piece(num_elements * element_bytes(sum_dtype));
  const Buffer typed_piece{piece.data(), num_elements, sum_dtype};
  for (int p = 0; p < num_packets; ++p) {
    const std::vector<float> values = make_values(num_elements, seed + p);
    convert(view(values), typed_piece);
    codec.encode(typed_piece, {}, packets.buffer().part(p, packet_bytes), context.of_packet(p), {});
  }
  const Bytes sum(num_elements * element_bytes(sum_dtype));
  const auto decode = [&] {
    std::fill_n(sum.data(), sum.size(), 0);
    codec.decode_sum(packets.buffer(), num_packets, {sum.data(), num_elements, sum_dtype}, context, {});
  };
  require(accepts(decode), "what was sent is accepted");

  const std::vector<uint8_t> sent = packets.copy();
  const Bytes packet(packet_bytes);
  std::memcpy(packet.data(), packets.data() + damaged * packet_bytes, packet_bytes);
  damage(provider, packet);
  std::memcpy(packets.data() + damaged * packet_bytes, packet.data(), packet_bytes);
  require(accepts(decode) == (packets.copy() == sent), "a packet is accepted if and only if it is what was sent");
  return 0;
}
