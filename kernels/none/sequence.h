// The passes of one encoding and one decoding of codec `none`, in their order; kernels/block/passes.h says what an
// executor is. Encoding reads the piece once and writes the packet once; decoding reads each packet once, and reads and
// writes the sums once (for several packets in the cache).
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

template <typename Executor>
void run_passes(Executor& executor, const NoneEncodeJob& job) {
  const bool aligned = is_aligned(job.packet, 16) && is_aligned(job.piece.data, 16);
  with_wire_type(job.wire_dtype, [&]<typename Wire, typename Sum>(Wire, Sum) {
    const int64_t groups = checksum_groups(job.packet_bytes);
    const int64_t num_whole_words = whole_words<Wire>(job.piece.num_elements, aligned);
    if (job.piece.dtype == job.wire_dtype) {
      executor.run(EncodeValues<Wire, Wire>{job, num_whole_words}, groups, 0);
    } else {
      executor.run(EncodeValues<Sum, Wire>{job, num_whole_words}, groups, 0);
    }
  });
  executor.run(FinishPacket{job}, 1, 0);
}

template <typename Executor>
void run_passes(Executor& executor, const NoneDecodeJob& job) {
  if (job.num_packets == 0) {
    return;
  }
  with_wire_type(job.wire_dtype, [&]<typename Wire, typename Sum>(Wire, Sum) {
    const bool all_aligned = job.num_packets == 1 || (job.packet_bytes % 16 == 0 &&
                                                      (!job.to_places || job.num_elements * sizeof(Sum) % 16 == 0));
    const bool aligned = all_aligned && is_aligned(job.packets, 16) && is_aligned(job.out.data, 16);
    executor.run(DecodeValues<Wire, Sum>{job, whole_words<Wire>(job.num_elements, aligned)},
                 checksum_groups(job.packet_bytes), DecodeValues<Wire, Sum>::shared_bytes(job.num_packets));
  });
  executor.run(CheckHeaders{job}, job.num_packets, 0);
}

}  // namespace isthmus::kernels::ISTHMUS_KERNEL_NAMESPACE
