// Codec `quant` sends each element in a few bits, and a scale for each group of neighbours. See docs/quant.md.
#pragma once

#include <cstdint>

#include "isthmus/codec.h"

namespace isthmus {

// Error feedback is optional. A group with NaN or Inf decodes to NaN. The last elements, too few for a group, are
// exact.
class QuantCodec final : public HostCodec {
 public:
  // Uses bits and error_feedback. Throws OptionError if one is out of its range.
  explicit QuantCodec(const Options& options);

  const char* name() const override { return "quant"; }
  int64_t packet_bytes(int64_t num_elements) const override;  // a multiple of 64
  bool keeps_residual() const override { return keeps_residual_; }
  CodecCounts encode(ConstBuffer piece, Buffer residual, Buffer packet, PacketContext context,
                     Workspace workspace) override;
  CodecCounts decode_sum(ConstBuffer packets, int num_packets, Buffer out, PacketContext context,
                         Workspace workspace) override;
  CodecCounts decode(ConstBuffer packet, Buffer out, PacketContext context, Workspace workspace) override;

 private:
  void decode_packets(ConstBuffer packets, int num_packets, Buffer out, PacketContext context, bool adds) const;

  int bits_;
  bool keeps_residual_;
};

}  // namespace isthmus
