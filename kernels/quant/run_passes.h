// The passes of one encoding and one decoding of codec `quant`, in their order; kernels/block/passes.h says what an
// executor is. Encoding reads each piece once (with error feedback the residual, too, and writes it), and writes its
// packet; decoding reads each packet and the own piece once, and writes the result once. What is not codes of a packet,
// a thirtieth of it, is read once more for its checksum.
#pragma once

#include <algorithm>

#include "kernels/block/packet_passes.h"
#include "kernels/quant/passes.h"

namespace isthmus::kernels::ISTHMUS_KERNEL_NAMESPACE {

// How many groups have a team of sixteen for each of so many blocks, limited to those that may write parts of
// checksums.
inline int64_t groups_for_blocks(int64_t num_blocks) {
  return std::clamp<int64_t>(divide_up(num_blocks, kQuantThreads / kQuantLanes), 1, ChecksumParts::kMaxGroups);
}

template <typename Executor>
void run_passes(Executor& executor, const QuantEncodeJob& job) {
  const int64_t groups = groups_for_blocks(job.shape.num_blocks);
  with_value_type(job.piece.dtype, [&]<typename Piece>(Piece) {
    if (job.residual == nullptr) {
      run_for_pieces(executor, QuantizeBlocks<Piece, false>{job}, groups);
    } else {
      run_for_pieces(executor, QuantizeBlocks<Piece, true>{job}, groups);
    }
  });
  const SummedBytes summed = summed_codes(job.layout);
  run_for_pieces(executor, Seal{job, summed}, checksum_groups(job.packet_bytes, summed));
}

template <typename Executor>
void run_passes(Executor& executor, const QuantDecodeJob& job) {
  if (job.num_packets == 0) {
    return;
  }
  const int64_t groups = groups_for_blocks(job.shape.num_blocks * (job.to_places ? job.num_packets : 1));
  executor.run(DequantizeBlocks{job}, groups, SumsOfPackets::bytes(kQuantThreads, job));
  const SummedBytes summed = takes_checksums(job) ? summed_codes(job.layout) : SummedBytes{};
  executor.run(Verify{job, summed}, checksum_groups(job.packet_bytes, summed));
}

}  // namespace isthmus::kernels::ISTHMUS_KERNEL_NAMESPACE
