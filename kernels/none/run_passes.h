// The passes of one encoding and one decoding of codec `none`, in their order; kernels/block/passes.h says what an
// executor is. Encoding reads each piece once and writes its packet once; decoding reads each packet and the own piece
// once, and writes the result once.
#pragma once

#include "kernels/block/packet_passes.h"
#include "kernels/none/passes.h"

namespace isthmus::kernels::ISTHMUS_KERNEL_NAMESPACE {

// All bytes of a packet: threads add up their checksum while they write or read them.
inline SummedBytes summed_values(int64_t packet_bytes) { return {kHeaderBytes, packet_bytes}; }

template <typename Executor>
void run_passes(Executor& executor, const NoneEncodeJob& job) {
  const bool aligned = packets_are_aligned(job, 16) && pieces_are_aligned(job, 16);
  with_floating_type(job.wire_dtype, [&]<typename Wire>(Wire) {
    const int64_t groups = checksum_groups(job.packet_bytes);
    const int64_t num_whole_words = whole_words<Wire>(job.piece.num_elements, aligned);
    if (job.piece.dtype == job.wire_dtype) {
      run_for_pieces(executor, EncodeValues<Wire, Wire>{job, num_whole_words}, groups);
    } else {
      run_for_pieces(executor, EncodeValues<SumOf<Wire>, Wire>{job, num_whole_words}, groups);
    }
  });
  run_for_pieces(executor, Seal{job, summed_values(job.packet_bytes)}, 1);
}

// Calls visit(Own{}, Out{}) with the C++ types of the job's own piece and result.
template <typename Wire, typename Visit>
void with_sum_types(const NoneDecodeJob& job, Visit visit) {
  using Sum = SumOf<Wire>;
  const bool out_as_sent = job.out.dtype == job.wire_dtype;
  if (job.own.dtype == job.wire_dtype) {
    out_as_sent ? visit(Wire{}, Wire{}) : visit(Wire{}, Sum{});
  } else {
    out_as_sent ? visit(Sum{}, Wire{}) : visit(Sum{}, Sum{});
  }
}

template <typename Executor>
void run_passes(Executor& executor, const NoneDecodeJob& job) {
  if (job.num_packets == 0) {
    return;
  }
  with_floating_type(job.wire_dtype, [&]<typename Wire>(Wire) {
    with_sum_types<Wire>(job, [&]<typename Own, typename Out>(Own, Out) {
      using Decode = DecodeValues<Wire, Own, Out>;
      const bool all_aligned = job.num_packets == 1 || (job.packet_bytes % 16 == 0 &&
                                                        (!job.to_places || job.num_elements * sizeof(Out) % 16 == 0));
      const bool aligned = all_aligned && is_aligned(job.packets + job.place_of(0) * job.packet_bytes, 16) &&
                           is_aligned(job.own.data, 16) && is_aligned(job.out.data, 16);
      executor.run(Decode{job, whole_words<Wire>(job.num_elements, aligned)}, checksum_groups(job.packet_bytes),
                   SumsOfPackets::bytes(kChecksumThreads, job));
    });
  });
  const SummedBytes summed = takes_checksums(job) ? summed_values(job.packet_bytes) : SummedBytes{};
  executor.run(Verify{job, summed}, checksum_groups(job.packet_bytes, summed));
}

}  // namespace isthmus::kernels::ISTHMUS_KERNEL_NAMESPACE
