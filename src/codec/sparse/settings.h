// Settings, shapes, layouts and headers of codec `sparse`, shared by its executors.
#pragma once

#include <cstdint>

#include "isthmus/codec.h"
#include "isthmus/packet_header.h"
#include "kernels/sparse/layout.h"

namespace isthmus {

// The options of sparse, validated (OptionError).
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
