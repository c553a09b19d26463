#include "codec/packet_header.h"

#include <bit>
#include <cstring>

#include "isthmus/error.h"

namespace isthmus {

static_assert(std::endian::native == std::endian::little, "packets are little-endian, and so must the machine be");

const char* to_string(CodecId id) {
  switch (id) {
    case CodecId::kNone:
      return "none";
    case CodecId::kTagc:
      return "tagc";
    case CodecId::kQuant:
      return "quant";
    case CodecId::kSparse:
      return "sparse";
  }
  return "unknown";
}

namespace {

// Characters are printed as numbers; everything else as it is.
template <typename T>
uint64_t number(T value) {
  return static_cast<uint64_t>(value);
}

template <typename T>
void check_equal(const char* field, T received, T expected, const PacketHeader& header) {
  ISTHMUS_CHECK(PacketError, received == expected, "packet with ", field, " ", number(received), " where ",
                number(expected), " is expected (codec ", to_string(header.codec), ", unit ", header.unit_hash,
                ", step ", header.step, ", ", header.num_elements,
                " elements): the ranks do not run the same reductions in the same order, or the packet is corrupt");
}

}  // namespace

PacketHeader read_header(const void* packet, const PacketHeader& expected) {
  PacketHeader header;
  std::memcpy(&header, packet, sizeof(header));
  check_equal("magic", header.magic, expected.magic, header);
  check_equal("version", header.version, expected.version, header);
  check_equal("codec", header.codec, expected.codec, header);
  check_equal("dtype", header.dtype, expected.dtype, header);
  check_equal("segment", header.segment, expected.segment, header);
  check_equal("unit", header.unit_hash, expected.unit_hash, header);
  check_equal("step", header.step, expected.step, header);
  check_equal("sending node", header.sender, expected.sender, header);
  check_equal("number of elements", header.num_elements, expected.num_elements, header);
  if (expected.codec == CodecId::kTagc) {
    check_equal("cell type", header.settings >> 24 & 0xff, expected.settings >> 24 & 0xff, header);
  }
  check_equal("settings", header.settings, expected.settings, header);
  return header;
}

void throw_wrong_checksum(const PacketHeader& header, uint64_t checksum) {
  throw PacketError(detail::concatenate("corrupt packet: its ", header.codec == CodecId::kNone ? "values" : "bytes",
                                        " have the checksum ", checksum, ", but its header says ", header.checksum,
                                        " (codec ", to_string(header.codec), ", unit ", header.unit_hash, ", step ",
                                        header.step, ", ", header.num_elements, " elements)"));
}

}  // namespace isthmus
