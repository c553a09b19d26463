// The 48 bytes that every packet begins with. The bytes on the wire are described in docs/packet_format.md.
#pragma once

#include <cstdint>

#include "isthmus/codec.h"

namespace isthmus {

enum class CodecId : uint8_t { kNone = 1, kTagc = 2, kQuant = 3, kSparse = 4 };
const char* to_string(CodecId id);

// Little-endian, no padding; a struct that is copied to and from the wire as it is.
struct PacketHeader {
  static constexpr uint32_t kMagic = 0x4d485349;  // "ISHM"
  static constexpr uint8_t kVersion = 5;

  uint32_t magic = kMagic;
  uint8_t version = kVersion;
  CodecId codec = CodecId::kNone;
  DataType dtype = DataType::kFloat32;  // of the values on the wire
  uint8_t segment = 0;
  uint64_t unit_hash = 0;
  uint64_t step = 0;
  uint64_t num_elements : 48 = 0;
  uint64_t sender : 16 = 0;  // the node that encoded it
  uint64_t settings = 0;     // whatever else both sides must agree on, packed by the codec
  uint64_t checksum = 0;     // of all bytes that follow the header
};
static_assert(sizeof(PacketHeader) == 48);

// Copies the header out of a packet and compares everything but `checksum` with what the receiver expects.
// Throws PacketError that names the first field that differs and both its values. `packet` needs no alignment.
PacketHeader read_header(const void* packet, const PacketHeader& expected);

// Throws PacketError that names the checksum in the header and that of the bytes. For codecs none and quant, which use
// packets before their checksum is known.
[[noreturn]] void throw_wrong_checksum(const PacketHeader& header, uint64_t checksum);

}  // namespace isthmus
