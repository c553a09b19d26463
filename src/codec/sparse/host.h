// Codec `sparse`: the largest elements of each block, as offsets and values. See docs/sparse.md.
#pragma once

#include <cstdint>

#include "codec/sparse/settings.h"
#include "isthmus/codec.h"

namespace isthmus {

// A packet's values are added at its offsets. Keeps no scratch memory.
class SparseCodec final : public Codec {
 public:
  // Uses sparsity, value_type and error_feedback. Throws OptionError if one of them is out of its range.
  explicit SparseCodec(const Options& options) : settings_(options) {}

  const char* name() const override { return "sparse"; }
  int64_t packet_bytes(int64_t num_elements) const override;  // a multiple of 16
  bool keeps_residual() const override { return settings_.feedback; }
  CodecCounts encode(ConstBuffer piece, Buffer residual, Buffer packet, PacketContext context,
                     Workspace workspace) override;
  CodecCounts decode_sum(ConstBuffer packets, int num_packets, Buffer out, PacketContext context,
                         Workspace workspace) override;

 private:
  SparseSettings settings_;
};

}  // namespace isthmus
