// The passes of one encoding and one decoding of codec `quant`, in their order; kernels/block/passes.h says what an
// executor is. Encoding reads each piece once (with error feedback the residual, too, and writes it), writes its
// packet, and reads that once more for its checksum; decoding reads each packet once for its values and once for its
// checksum, reads the own piece once and writes the result once.
#pragma once

#include "kernels/block/packet_passes.h"
#include "kernels/quant/passes.h"

namespace isthmus::kernels::ISTHMUS_KERNEL_NAMESPACE {

// Groups of threads that have a team of sixteen for each of so many blocks.
inline int64_t groups_for_blocks(int64_t num_blocks) {
  const int64_t groups = divide_up(num_blocks, kQuantThreads / kQuantLanes);
  return groups < 1 ? 1 : groups;
}

template <typename Executor>
void run_passes(Executor& executor, const QuantEncodeJob& job) {
  const int64_t groups = groups_for_blocks(job.shape.num_blocks);
  with_group(job.settings, [&]<int kGroupRows, bool kRotate>() {
    with_piece_type(job.piece.dtype, [&]<typename Piece>(Piece) {
      if (job.residual == nullptr) {
        run_for_pieces(executor, QuantizeBlocks<Piece, kGroupRows, kRotate, false>{job}, groups, 0);
      } else {
        run_for_pieces(executor, QuantizeBlocks<Piece, kGroupRows, kRotate, true>{job}, groups, 0);
      }
    });
  });
  run_for_pieces(executor, Seal{job}, checksum_groups(job.packet_bytes), 0);
}

template <typename Executor>
void run_passes(Executor& executor, const QuantDecodeJob& job) {
  if (job.num_packets == 0) {
    return;
  }
  const int64_t groups = groups_for_blocks(job.shape.num_blocks * (job.to_places ? job.num_packets : 1));
  with_group(job.settings, [&]<int kGroupRows, bool kRotate>() {
    executor.run(DequantizeBlocks<kGroupRows, kRotate>{job}, groups, 0);
  });
  executor.run(Verify{job}, checksum_groups(job.packet_bytes), 0);
}

}  // namespace isthmus::kernels::ISTHMUS_KERNEL_NAMESPACE
