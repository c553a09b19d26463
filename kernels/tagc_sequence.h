// The passes of one encoding and one decoding of codec `tagc`, in their order. An Executor has
//
//   clear(void* memory, int64_t bytes)
//   run(pass, int64_t max_groups, int64_t shared_bytes)   // after all that was given to it before
//
// and is a CUDA stream (cuda_executor.cuh) or, in tests, emulated. Which passes run, and on how many groups, depends on
// shapes and addresses alone, never on data: a captured sequence may be replayed.
//
// docs/cuda.md says what each pass reads and writes.
#pragma once

#include "kernels/packet_passes.h"
#include "kernels/tagc_add_passes.h"
#include "kernels/tagc_check_passes.h"
#include "kernels/tagc_peel_passes.h"
#include "kernels/tagc_select_passes.h"

namespace isthmus::kernels::ISTHMUS_KERNEL_NAMESPACE {

inline bool is_aligned(const void* address, uintptr_t bytes) {
  return reinterpret_cast<uintptr_t>(address) % bytes == 0;
}

// Calls visit(T{}) with the C++ type of a piece.
template <typename Visit>
void with_piece_type(DataType dtype, Visit visit) {
  switch (dtype) {
    case DataType::kFloat32:
      return visit(float{});
    case DataType::kBFloat16:
      return visit(BFloat16{});
    case DataType::kFloat16:
      return visit(Float16{});
    case DataType::kFloat64:
    case DataType::kByte:
      return;  // refused when the job was made
  }
}

template <typename Piece, typename Executor>
void add_and_mark(Executor& executor, const TagcEncodeJob& job) {
  if (job.sample_runs > 0) {
    executor.run(SampleBound<Piece>{job}, 1, SampleBound<Piece>::kMaxSharedBytes);
  }
  const int64_t shared_bytes = AddAndMark<Piece, true>::shared_bytes(job.shape.block_elements);
  if (is_aligned(job.piece.data, 4 * sizeof(Piece)) && is_aligned(job.residual, 16)) {
    executor.run(AddAndMark<Piece, true>{job}, job.shape.num_blocks, shared_bytes);
  } else {
    executor.run(AddAndMark<Piece, false>{job}, job.shape.num_blocks, shared_bytes);
  }
}

template <typename Executor>
void select_elements(Executor& executor, const TagcEncodeJob& job) {
  const TagcShape& shape = job.shape;
  const int64_t word_groups = divide_up(shape.num_blocks * (shape.block_elements / 32), kPassThreads);
  with_piece_type(job.piece.dtype, [&]<typename Piece>(Piece) { add_and_mark<Piece>(executor, job); });
  executor.run(MarkAll{job}, word_groups, MarkAll::kMaxSharedBytes);
  for (int digit = 1; digit < kNumDigits; ++digit) {
    executor.run(CountDigit{job, digit}, word_groups, CountDigit::kMaxSharedBytes);
  }
  executor.run(ApplyThreshold{job}, word_groups, ApplyThreshold::kMaxSharedBytes);
  executor.run(SumTies{job}, 1, SumTies::kMaxSharedBytes);
  executor.run(CutTies{job}, shape.num_blocks, CutTies::kMaxSharedBytes);
}

template <typename Executor>
void peel_and_insert(Executor& executor, const TagcEncodeJob& job) {
  const TagcShape& shape = job.shape;
  const int64_t columns = shape.block_elements / 32;
  if (tables_fit_shared(shape)) {
    executor.run(PeelIndex<true>{job}, columns, table_bytes(shape));
    executor.run(HoldBack<true>{job}, columns, HoldBack<false>::kMaxSharedBytes + table_bytes(shape));
  } else {
    executor.run(PeelIndex<false>{job}, columns, 0);
    executor.run(HoldBack<false>{job}, columns, HoldBack<false>::kMaxSharedBytes);
  }
  executor.run(InsertValues{job}, divide_up(shape.num_blocks * columns, kPassThreads), 0);
}

template <typename Executor>
void encode_tagc(Executor& executor, const TagcEncodeJob& job) {
  executor.clear(job.packet, job.layout.end);
  executor.clear(job.state, static_cast<int64_t>(sizeof(SelectState)) + 4 * job.shape.num_blocks);
  if (job.shape.num_blocks > 0) {
    select_elements(executor, job);
    peel_and_insert(executor, job);
  }
  executor.run(ChecksumPackets{job.packet, job.layout.end, 1, &job.state->checksum}, checksum_groups(job.layout.end),
               0);
  executor.run(WriteHeader{job.header, job.context, &job.state->checksum, job.packet}, 1, 0);
}

template <typename Executor>
void decode_tagc(Executor& executor, const TagcDecodeJob& job) {
  if (job.num_packets == 0) {
    return;
  }
  const int64_t packet_bytes = job.layout.end;
  executor.clear(job.state, static_cast<int64_t>(sizeof(DecodeState)) + 8 * job.num_packets);
  executor.run(ChecksumPackets{job.packets, packet_bytes, job.num_packets, job.checksums},
               checksum_groups(packet_bytes), 0);
  executor.run(CheckPackets{job}, job.num_packets, 0);
  const int64_t columns = job.shape.block_elements / 32;
  if (tables_fit_shared(job.shape)) {
    executor.run(PeelPackets<true>{job}, columns, table_bytes(job.shape));
  } else {
    executor.run(PeelPackets<false>{job}, columns, 0);
  }
  executor.run(ReportFault{job.header, job.context, job.packets, packet_bytes, job.checksums, job.fault}, 1, 0);
}

}  // namespace isthmus::kernels::ISTHMUS_KERNEL_NAMESPACE
