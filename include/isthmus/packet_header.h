// The 48 bytes that begin every packet. docs/packet_format.md describes the bytes on the wire.
#pragma once

#include <cstdint>
#include <string>

#include "isthmus/codec.h"
#include "isthmus/codec_type.h"

namespace isthmus {

// Little-endian, without padding: the struct itself is copied to and from the wire.
struct PacketHeader {
  static constexpr uint32_t kMagic = 0x4d485349;  // "ISHM"
  static constexpr uint8_t kVersion = 6;

  uint32_t magic = kMagic;
  uint8_t version = kVersion;
  CodecId codec = CodecId::kNone;
  DataType dtype = DataType::kFloat32;  // of the values on the wire
  uint8_t segment = 0;
  uint64_t unit_hash = 0;
  uint64_t step = 0;
  uint64_t num_elements : 48 = 0;
  uint64_t sender : 16 = 0;  // the node that encoded it
  uint64_t settings = 0;     // what else both sides must agree on, packed by the codec
  uint64_t checksum = 0;     // of all bytes that follow the header
};
static_assert(sizeof(PacketHeader) == 48);

// A packet's header without the checksum.
PacketHeader make_header(CodecId codec, DataType dtype, int64_t num_elements, uint64_t settings,
                         const PacketContext& context);

// Why ranks may reduce different units at once, for their errors.
inline constexpr const char* kWhyUnitsDiffer =
    "the ranks do not reduce the same units in the same order, or parameters with gradients differ between them "
    "(FSDP2: model.set_reduce_scatter_unused_params(True) then reduces all)";

// What an error says of a packet, in brackets: "(from node 1, codec quant, unit 7, step 3, 1000 elements)".
std::string text_of(const PacketHeader& header);

// Copies the header out of a packet and compares all but `checksum` with what the receiver expects. Throws PacketError
// that names the first field that differs, with both values. `packet` needs no alignment.
PacketHeader read_header(const void* packet, const PacketHeader& expected);

// Throws PacketError for a packet whose checksum is not its header's. For codecs that use packets before they have the
// checksum (CodecType::checksum_of).
[[noreturn]] void throw_wrong_checksum(const PacketHeader& header, uint64_t checksum);

}  // namespace isthmus
