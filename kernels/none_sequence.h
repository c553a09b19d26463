// The passes of one encoding and one decoding of codec `none`, in their order; as tagc_sequence.h. Encoding reads the
// piece once and writes the packet once; decoding reads each packet once, and reads and writes the sums for each.
#pragma once

#include "kernels/none_passes.h"
#include "kernels/packet_passes.h"

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
void encode_none(Executor& executor, const NoneEncodeJob& job) {
  const int64_t groups = checksum_groups(job.packet_bytes);
  executor.clear(job.checksum, sizeof(*job.checksum));
  with_wire_type(job.wire_dtype, [&]<typename Wire, typename Sum>(Wire, Sum) {
    if (job.piece.dtype == job.wire_dtype) {
      executor.run(EncodeValues<Wire, Wire>{job}, groups, 0);
    } else {
      executor.run(EncodeValues<Sum, Wire>{job}, groups, 0);
    }
  });
  executor.run(WriteHeader{job.header, job.context, job.checksum, job.packet}, 1, 0);
}

template <typename Executor>
void decode_none(Executor& executor, const NoneDecodeJob& job) {
  if (job.num_packets == 0) {
    return;
  }
  executor.clear(job.state, static_cast<int64_t>(sizeof(DecodeState)) + 8 * job.num_packets);
  with_wire_type(job.wire_dtype, [&]<typename Wire, typename Sum>(Wire, Sum) {
    executor.run(DecodeValues<Wire, Sum>{job}, checksum_groups(job.packet_bytes), 0);
  });
  executor.run(CheckHeaders{job}, job.num_packets, 0);
  executor.run(ReportFault{job.header, job.context, job.packets, job.packet_bytes, job.checksums, job.fault}, 1, 0);
}

}  // namespace isthmus::kernels::ISTHMUS_KERNEL_NAMESPACE
