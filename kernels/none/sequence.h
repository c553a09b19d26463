// The passes of one encoding and one decoding of codec `none`, in their order; kernels/block/passes.h says what an
// executor is. Encoding reads each piece once and writes its packet once; decoding reads each packet and the own piece
// once, and writes the result once.
#pragma once

#include "kernels/block/packet_passes.h"
#include "kernels/none/passes.h"

namespace isthmus::kernels::ISTHMUS_KERNEL_NAMESPACE {

// Calls visit(Wire{}, Sum{}) with the C++ types of a floating wire type and of what accumulates it.
template <typename Visit>
void with_wire_type(DataType wire_dtype, Visit visit) {
  switch (wire_dtype) {
    case DataType::kFloat32:
      return visit(float{}, float{});
    case DataType::kBFloat16:
      return visit(BFloat16{}, float{});
    case DataType::kFloat16:
      return visit(Float16{}, float{});
    case DataType::kFloat64:
      return visit(double{}, double{});
    case DataType::kByte:
      return;  // refused when the job was made
  }
}

// All bytes of a packet: threads add up their checksum while they write or read them.
inline SummedBytes summed_values(int64_t packet_bytes) { return {kHeaderBytes, packet_bytes}; }

template <typename Executor>
void run_passes(Executor& executor, const NoneEncodeJob& job) {
  const bool aligned = packets_are_aligned(job, 16) && pieces_are_aligned(job, 16);
  with_wire_type(job.wire_dtype, [&]<typename Wire, typename Sum>(Wire, Sum) {
    const int64_t groups = checksum_groups(job.packet_bytes);
    const int64_t num_whole_words = whole_words<Wire>(job.piece.num_elements, aligned);
    if (job.piece.dtype == job.wire_dtype) {
      run_for_pieces(executor, EncodeValues<Wire, Wire>{job, num_whole_words}, groups);
    } else {
      run_for_pieces(executor, EncodeValues<Sum, Wire>{job, num_whole_words}, groups);
    }
  });
  run_for_pieces(executor, Seal{job, summed_values(job.packet_bytes)}, 1);
}

// Calls visit(Own{}, Out{}) with the C++ types of the job's own piece and result.
template <typename Wire, typename Sum, typename Visit>
void with_sum_types(const NoneDecodeJob& job, Visit visit) {
  const bool own_as_sent = job.own.dtype == job.wire_dtype;
  const bool out_as_sent = job.out.dtype == job.wire_dtype;
  if (own_as_sent) {
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
  const int64_t groups = checksum_groups(job.packet_bytes);
  with_wire_type(job.wire_dtype, [&]<typename Wire, typename Sum>(Wire, Sum) {
    with_sum_types<Wire, Sum>(job, [&]<typename Own, typename Out>(Own, Out) {
      using Decode = DecodeValues<Wire, Sum, Own, Out>;
      const bool all_aligned = job.num_packets == 1 || (job.packet_bytes % 16 == 0 &&
                                                        (!job.to_places || job.num_elements * sizeof(Out) % 16 == 0));
      const bool aligned = all_aligned && is_aligned(job.packets + job.place_of(0) * job.packet_bytes, 16) &&
                           is_aligned(job.own.data, 16) && is_aligned(job.out.data, 16);
      executor.run(Decode{job, whole_words<Wire>(job.num_elements, aligned)}, groups, Decode::shared_bytes(job));
    });
  });
  const SummedBytes summed = takes_checksums(job) ? summed_values(job.packet_bytes) : SummedBytes{};
  executor.run(Verify{job, summed}, takes_checksums(job) ? 1 : groups);
}

}  // namespace isthmus::kernels::ISTHMUS_KERNEL_NAMESPACE
