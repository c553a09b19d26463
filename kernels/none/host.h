// Codec `none` sends the values themselves, in the type of the reduced tensor.
#pragma once

#include <cstdint>

#include "isthmus/codec.h"
#include "isthmus/packet_header.h"

namespace isthmus {

// The settings that sender and receiver share, and what follows from them.
struct NoneSettings {
  // wire_dtype must be a floating type, else it throws Error.
  NoneSettings(DataType wire_dtype, int ranks_per_node);

  DataType wire_dtype;
  int divisor = 1;  // a power of two, so that neither division nor multiplication rounds a normal number

  int64_t packet_bytes(int64_t num_elements) const;
  PacketHeader header(int64_t num_elements, PacketContext context) const;  // all but the checksum
};

// A packet is a header with a checksum, the piece's values in the wire type, and zeros up to a multiple of 8 bytes.
// Values are rounded once, to nearest even. float16 values are divided by the lowest power of two that is not below
// ranks_per_node, and multiplied by it after decoding, so that a sum of ranks_per_node values cannot overflow.
class NoneCodec final : public HostCodec {
 public:
  // The arguments are those of NoneSettings.
  NoneCodec(DataType wire_dtype, int ranks_per_node) : settings_(wire_dtype, ranks_per_node) {}

  const char* name() const override { return "none"; }
  int64_t packet_bytes(int64_t num_elements) const override { return settings_.packet_bytes(num_elements); }
  bool keeps_residual() const override { return false; }
  CodecCounts encode(ConstBuffer piece, Buffer residual, Buffer packet, PacketContext context,
                     Workspace workspace) override;
  CodecCounts decode_sum(ConstBuffer packets, int num_packets, Buffer out, PacketContext context,
                         Workspace workspace) override;

 private:
  NoneSettings settings_;
};

}  // namespace isthmus
