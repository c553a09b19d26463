// Sizes of packets: every section begins at a multiple of 64 bytes.
#pragma once

#include <cstdint>

#include "base/rounding.h"
#include "isthmus/buffer.h"
#include "isthmus/error.h"

namespace isthmus {

constexpr int64_t section_bytes(int64_t bytes) { return round_up(bytes, 64); }

// Throws Error if a caller's packets have the wrong size.
inline void check_packets(const char* codec, ConstBuffer packets, int64_t num_packets, int64_t packet_bytes) {
  ISTHMUS_CHECK(Error, packets.bytes() == num_packets * packet_bytes, "codec ", codec, ": ", packets.bytes(),
                " bytes for ", num_packets, " packets of ", packet_bytes);
}

// Throws Error if a caller's packets have the wrong size, or the sum of what they decode to is not float32.
inline void check_float32_packets(const char* codec, ConstBuffer packets, int64_t num_packets, ConstBuffer out,
                                  int64_t packet_bytes) {
  ISTHMUS_CHECK(Error, out.dtype == DataType::kFloat32, "codec ", codec, " decodes to float32, not ",
                to_string(out.dtype));
  check_packets(codec, packets, num_packets, packet_bytes);
}

}  // namespace isthmus
