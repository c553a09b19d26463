#include "isthmus/packet_header.h"

#include <bit>
#include <cstring>

#include "codec/registry.h"
#include "isthmus/error.h"

namespace isthmus {

static_assert(std::endian::native == std::endian::little, "packets are little-endian, and so must the machine be");

namespace {

// Characters are printed as numbers; everything else as it is.
template <typename T>
uint64_t number(T value) {
  return static_cast<uint64_t>(value);
}

template <typename T>
void check_equal(const char* field, T received, T expected, const PacketHeader& header,
                 const char* why = "the ranks do not run the same reductions in the same order") {
  ISTHMUS_CHECK(PacketError, received == expected, "packet with ", field, " ", number(received), " where ",
                number(expected), " is expected ", text_of(header), ": ", why, ", or the packet is corrupt");
}

uint64_t value_of(const HeaderPart& part, const PacketHeader& header) {
  return header.settings >> part.first_bit & ((uint64_t{1} << part.num_bits) - 1);
}

}  // namespace

PacketHeader make_header(CodecId codec, DataType dtype, int64_t num_elements, uint64_t settings,
                         const PacketContext& context) {
  PacketHeader header;
  header.codec = codec;
  header.dtype = dtype;
  header.segment = context.segment;
  header.unit_hash = context.unit_hash;
  header.step = context.step;
  header.num_elements = static_cast<uint64_t>(num_elements);
  header.sender = context.sender;
  header.settings = settings;
  return header;
}

std::string text_of(const PacketHeader& header) {
  return detail::concatenate("(from node ", header.sender, ", codec ", to_string(header.codec), ", unit ",
                             header.unit_hash, ", step ", header.step, ", ", header.num_elements, " elements)");
}

PacketHeader read_header(const void* packet, const PacketHeader& expected) {
  PacketHeader header;
  std::memcpy(&header, packet, sizeof(header));
  const uint64_t sender = header.sender;
  header.sender = expected.sender;  // errors name the node from which it arrived
  check_equal("magic", header.magic, expected.magic, header);
  check_equal("version", header.version, expected.version, header);
  check_equal("codec", header.codec, expected.codec, header);
  check_equal("dtype", header.dtype, expected.dtype, header);
  check_equal("segment", header.segment, expected.segment, header);
  check_equal("unit", header.unit_hash, expected.unit_hash, header, kWhyUnitsDiffer);
  check_equal("step", header.step, expected.step, header);
  check_equal<uint64_t>("sending node", sender, expected.sender, header);
  check_equal("number of elements", header.num_elements, expected.num_elements, header);
  if (const CodecType* type = codec_or_null(expected.codec)) {
    for (const HeaderPart& part : type->header_parts) {
      check_equal(part.name, value_of(part, header), value_of(part, expected), header);
    }
  }
  check_equal("settings", header.settings, expected.settings, header);
  return header;
}

void throw_wrong_checksum(const PacketHeader& header, uint64_t checksum) {
  const CodecType* type = codec_or_null(header.codec);
  const char* what = type == nullptr || type->checksum_of == nullptr ? "bytes" : type->checksum_of;
  throw PacketError(detail::concatenate("corrupt packet: its ", what, " have the checksum ", checksum,
                                        ", but its header says ", header.checksum, " ", text_of(header)));
}

}  // namespace isthmus
