// The passes of one encoding and one decoding of codec `sparse`, in their order; kernels/block/passes.h says what an
// executor is. Encoding reads the piece and the residual once, writes the residual once, and writes the packet and
// reads it again; decoding reads each packet twice, reads the own piece once and writes the result once.
#pragma once

#include "kernels/sparse/passes.h"

namespace isthmus::kernels::ISTHMUS_KERNEL_NAMESPACE {

template <typename Piece, typename Executor>
void encode_sparse_blocks(Executor& executor, const SparseEncodeJob& job) {
  using Encode = EncodeSparseBlocks<Piece>;
  const bool aligned = pieces_are_aligned(job, kSparseItems * sizeof(Piece)) && residuals_are_aligned(job, 16);
  const int64_t groups = job.shape.num_blocks > 0 ? job.shape.num_blocks : 1;
  run_for_pieces(executor, Encode{job, aligned}, groups, Encode::kMaxSharedBytes);
}

template <typename Executor>
void run_passes(Executor& executor, const SparseEncodeJob& job) {
  with_piece_type(job.piece.dtype, [&]<typename Piece>(Piece) { encode_sparse_blocks<Piece>(executor, job); });
  run_for_pieces(executor, Seal{job}, checksum_groups(job.packet_bytes), 0);
}

template <typename Executor>
void run_passes(Executor& executor, const SparseDecodeJob& job) {
  if (job.num_packets == 0) {
    return;
  }
  const int64_t turns = job.to_places ? job.num_packets * job.shape.num_blocks : job.shape.num_blocks;
  executor.run(DecodeSparseBlocks{job}, turns > job.num_packets ? turns : job.num_packets,
               DecodeSparseBlocks::kMaxSharedBytes);
  executor.run(Verify{job}, checksum_groups(job.packet_bytes), 0);
}

}  // namespace isthmus::kernels::ISTHMUS_KERNEL_NAMESPACE
