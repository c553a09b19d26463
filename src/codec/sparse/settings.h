// What codec `sparse` needs to know outside the kernels, on every executor: settings, shapes, layouts and headers.
#pragma once

#include <cstdint>

#include "isthmus/codec.h"
#include "isthmus/packet_header.h"
#include "kernels/sparse/layout.h"

namespace isthmus {

// The knobs of sparse, validated (OptionError).
struct SparseSettings {
  // Uses sparsity, value_type and error_feedback.
  explicit SparseSettings(const Options& options);

  double sparsity;
  kernels::SparseValueType value_type;
  bool feedback;  // whether there is a residual

  kernels::SparseShape shape(int64_t num_elements) const;
};

kernels::SparseLayout sparse_layout(const kernels::SparseShape& shape);

// All of a packet's header but the checksum.
PacketHeader make_sparse_header(const kernels::SparseShape& shape, PacketContext context);

// Throw Error where a caller's buffers have the wrong type or size. residual: empty without feedback.
void check_sparse_piece(ConstBuffer piece, ConstBuffer residual, ConstBuffer packet, int64_t packet_bytes,
                        bool feedback);
void check_sparse_packets(ConstBuffer packets, int64_t num_packets, ConstBuffer out, int64_t packet_bytes);

}  // namespace isthmus
