// Codec `tagc` in two tiers sends the largest elements of a piece as an index and a sketch. See docs/tagc.md.
#pragma once

#include <cstdint>

#include "isthmus/codec.h"
#include "kernels/tagc/settings.h"

namespace isthmus {

// A packet holds the support of one node, and nothing is merged into it, so sketch cells combine by XOR of bit
// patterns, which is exact. The sender keeps in its residual what the receiver could not peel.
class TagcCodec final : public HostCodec {
 public:
  // Uses ratio and sparsity. Throws OptionError if one is out of its range, or if error_feedback is off.
  explicit TagcCodec(const Options& options, TagcLimits limits = {}) : settings_(options, limits) {}

  const char* name() const override { return "tagc"; }
  int64_t packet_bytes(int64_t num_elements) const override;  // a multiple of 64
  bool keeps_residual() const override { return true; }
  CodecCounts encode(ConstBuffer piece, Buffer residual, Buffer packet, PacketContext context,
                     Workspace workspace) override;
  CodecCounts decode_sum(ConstBuffer packets, int num_packets, Buffer out, PacketContext context,
                         Workspace workspace) override;

 private:
  TagcSettings settings_;
  TagcScratch scratch_;
};

}  // namespace isthmus
