// Codec `none`: the values themselves, in the type of the tensor that is reduced.
#pragma once

#include <cstdint>

#include "isthmus/codec.h"

namespace isthmus {

// Packet: header, then the piece's values in the wire type, then zeros up to a multiple of 8 bytes; the header holds
// their checksum. Values are rounded once, to nearest even. float16 values are divided by the lowest power of two that
// is not below ranks_per_node, and multiplied by it after decoding, so that a sum of ranks_per_node float16 values
// cannot overflow.
class NoneCodec final : public Codec {
 public:
  // wire_dtype: a floating type. Throws Error otherwise.
  NoneCodec(DataType wire_dtype, int ranks_per_node);

  const char* name() const override { return "none"; }
  int64_t packet_bytes(int64_t num_elements) const override;
  bool keeps_residual() const override { return false; }
  CodecCounts encode(ConstBuffer piece, Buffer residual, Buffer packet, PacketContext context, Stream stream) override;
  CodecCounts decode_sum(ConstBuffer packets, int num_packets, Buffer out, PacketContext context,
                         Stream stream) override;

 private:
  DataType wire_dtype_;
  int divisor_ = 1;  // a power of two, so that neither division nor multiplication rounds a normal number
};

}  // namespace isthmus
