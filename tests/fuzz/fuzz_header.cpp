// Packet headers: what is accepted equals what is expected in every field but the checksum.
#include "isthmus/packet_header.h"
#include "packets.h"

using namespace isthmus;
using namespace isthmus::fuzz;

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  FuzzedDataProvider provider(data, size);
  PacketHeader expected;
  expected.codec = codec_types()[provider.ConsumeIntegralInRange<size_t>(0, codec_types().size() - 1)]->id;
  expected.dtype = static_cast<DataType>(provider.ConsumeIntegralInRange<int64_t>(1, 4));
  expected.unit_hash = provider.ConsumeIntegral<uint64_t>();
  expected.step = provider.ConsumeIntegral<uint16_t>();
  expected.num_elements = provider.ConsumeIntegral<uint32_t>();
  expected.sender = static_cast<uint16_t>(expected.step);
  expected.settings = provider.ConsumeIntegral<uint32_t>();
  PacketHeader sent = expected;
  sent.checksum = provider.ConsumeIntegral<uint64_t>();

  const Bytes packet(sizeof(PacketHeader));
  std::memcpy(packet.data(), &sent, sizeof(sent));
  damage(provider, packet);
  const bool intact = std::memcmp(packet.data(), &expected, offsetof(PacketHeader, checksum)) == 0;
  const bool accepted = accepts([&] { read_header(packet.data(), expected); });
  require(accepted == intact, "a header is accepted if and only if it is the expected one");
  return 0;
}
