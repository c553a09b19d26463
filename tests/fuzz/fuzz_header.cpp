// Packet headers: what is accepted equals what is expected in every field but the checksum.
#include "isthmus/packet_header.h"
#include "packets.h"

using namespace isthmus;
using namespace isthmus::fuzz;

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  Decisions decisions(data, size);
  PacketHeader expected;
  expected.codec = codec_types()[decisions.choose(codec_types().size())]->id;
  expected.dtype = static_cast<DataType>(1 + decisions.choose(4));
  expected.unit_hash = decisions.take<uint64_t>();
  expected.step = decisions.take<uint16_t>();
  expected.num_elements = decisions.take<uint32_t>();
  expected.sender = static_cast<uint16_t>(expected.step);
  expected.settings = decisions.take<uint32_t>();
  PacketHeader sent = expected;
  sent.checksum = decisions.take<uint64_t>();

  const Bytes packet(sizeof(PacketHeader));
  std::memcpy(packet.data(), &sent, sizeof(sent));
  damage(decisions, packet);
  const bool intact = std::memcmp(packet.data(), &expected, offsetof(PacketHeader, checksum)) == 0;
  const bool accepted = accepts([&] { read_header(packet.data(), expected); });
  require(accepted == intact, "a header is accepted if and only if it is the expected one");
  return 0;
}
