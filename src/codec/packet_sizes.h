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

// Throws Error if a caller's buffers have the wrong type or size for a codec that encodes float32.
inline void check_float32_piece(const char* codec, ConstBuffer piece, ConstBuffer residual, bool keeps_residual,
                                ConstBuffer packet, int64_t packet_bytes) {
  ISTHMUS_CHECK(Error, piece.dtype == DataType::kFloat32, "codec ", codec, " encodes float32 pieces, not ",
                to_string(piece.dtype));
  ISTHMUS_CHECK(Error, !keeps_residual || residual.dtype == DataType::kFloat32, "codec ", codec,
                " keeps float32 residuals, not ", to_string(residual.dtype));
  const int64_t residual_elements = keeps_residual ? piece.num_elements : 0;
  ISTHMUS_CHECK(Error, residual.num_elements == residual_elements, "codec ", codec, ": residual of ",
                residual.num_elements, " elements where ", residual_elements, " are needed");
  check_packets(codec, packet, 1, packet_bytes);
}

// Throws Error if the sum of what packets decode to is not float32.
inline void check_float32_sum(const char* codec, ConstBuffer out) {
  ISTHMUS_CHECK(Error, out.dtype == DataType::kFloat32, "codec ", codec, " decodes to float32, not ",
                to_string(out.dtype));
}

}  // namespace isthmus
