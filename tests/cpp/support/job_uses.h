// Which memory of a device a job uses: for whoever looks for work that nothing orders (stream_order.h).
#pragma once

#include <type_traits>
#include <vector>

#include "kernels/jobs.h"
#include "kernels/weights/layout.h"
#include "tests/cpp/support/stream_order.h"

namespace isthmus::test {

using MemoryUses = std::vector<MemoryUse>;

// One object; null: none is used.
template <typename T>
MemoryUse writes_one(const T* object) {
  return writes(object, object == nullptr ? 0 : static_cast<int64_t>(sizeof(T)));
}
template <typename T>
MemoryUse reads_one(const T* object) {
  return reads(object, object == nullptr ? 0 : static_cast<int64_t>(sizeof(T)));
}
template <typename T>
MemoryUse adds_to_one(const T* object) {
  return adds_to(object, sizeof(T));
}
inline MemoryUse writes_parts(const kernels::ChecksumParts& parts, int64_t num_packets = 1) {
  return writes(parts.words, 8 * kernels::ChecksumParts::num_words(num_packets));
}

// What the encoding of one piece uses with any codec, and what decoding does.
inline MemoryUses uses_of_any_codec(const kernels::EncodeJobBase& job) {
  return {reads_one(job.context),
          reads(job.piece),
          writes(job.residual, job.residual == nullptr ? 0 : 4 * job.piece.num_elements),
          writes(job.packet, job.packet_bytes),
          writes_parts(job.parts),
          writes_one(job.arrived),
          writes_one(job.sealed),
          writes_one(job.counted),
          writes_one(job.magnitudes)};
}
inline MemoryUses uses_of_any_codec(const kernels::DecodeJobBase& job) {
  MemoryUses uses = {reads_one(job.context), reads(job.own.data, job.own.data == nullptr ? 0 : job.own.bytes()),
                     writes(job.sum),        writes(job.out),
                     writes_one(job.state),  writes_parts(job.parts, job.num_places()),
                     writes_one(job.counted)};
  for (int64_t i = 0; i < job.num_packets; ++i) {
    uses.push_back(reads(job.packets + job.place_of(i) * job.packet_bytes, job.packet_bytes));
  }
  return uses;
}
inline MemoryUses uses_of_any_codec(const kernels::WeightEncodeJob& job) {
  const int64_t num_blocks = kernels::weight_shape(job.shard).num_blocks();
  return {reads(job.before),       reads(job.shard),
          reads(job.replica),      writes(job.sent, kernels::kWeightHeaderBytes + job.most_bytes),
          writes_one(job.state),   writes(job.block_bytes, num_blocks * static_cast<int64_t>(sizeof(*job.block_bytes))),
          writes_parts(job.parts), writes_parts(job.replica_parts)};
}
inline MemoryUses uses_of_any_codec(const kernels::WeightDecodeJob& job) {
  return {reads(job.headers, job.num_nodes * kernels::kWeightHeaderBytes),
          reads(job.packets, job.num_nodes * job.row_bytes),
          reads(job.shard),
          writes(job.replica),
          writes_one(job.state),
          writes(job.bad_blocks, job.num_nodes * static_cast<int64_t>(sizeof(*job.bad_blocks))),
          writes_parts(job.parts, job.num_nodes)};
}
inline MemoryUses uses_of_any_codec(const kernels::ConvertJob& job) { return {reads(job.in), writes(job.out)}; }
inline MemoryUses uses_of_any_codec(const kernels::MultiplyJob& job) { return {writes(job.values)}; }
inline MemoryUses uses_of_any_codec(const kernels::AddJob& job) { return {reads(job.values), writes(job.sum)}; }
inline MemoryUses uses_of_any_codec(const kernels::SquaredErrorJob& job) {
  return {reads(job.given, 4 * job.num_elements), reads(job.decoded, 4 * job.num_elements),
          writes(job.parts, kernels::kSquaredErrorParts * static_cast<int64_t>(sizeof(*job.parts)))};
}
inline MemoryUses uses_of_any_codec(const kernels::DropResidualJob& job) {
  return {writes(job.residual), writes_one(job.magnitudes), adds_to_one(job.counts)};
}
inline MemoryUses uses_of_any_codec(const kernels::SetContextsJob& job) {
  return {writes(job.contexts, job.count * static_cast<int64_t>(sizeof(*job.contexts)))};
}
inline MemoryUses uses_of_any_codec(const kernels::NextStepJob& job) { return {writes_one(job.context)}; }
inline MemoryUses uses_of_any_codec(const kernels::RefuseUnitsJob& job) {
  return {reads(job.told, job.num_ranks * static_cast<int64_t>(sizeof(*job.told))),
          writes(job.packets, job.num_packets * job.packet_bytes)};
}
inline MemoryUses uses_of_any_codec(const kernels::TagcFlatMergeJob& job) {
  return {reads(job.arrived, 8 * job.num_words), writes(job.index, 8 * job.num_words)};
}
inline MemoryUses uses_of_any_codec(const kernels::TagcFlatDecodeJob& job) {
  return {reads(job.wire_index, 8 * job.shape.index_words()), writes(job.cells, job.shape.sketch_bytes()),
          writes(job.out, 4 * job.shape.num_elements), writes(job.rows, 16 * job.shape.num_blocks),
          adds_to_one(job.counts)};
}

// What the job's own codec uses besides.
template <typename Job>
MemoryUses uses_of_codec(const Job& /*job*/) {
  return {};
}
inline MemoryUses uses_of_codec(const kernels::QuantEncodeJob& job) { return {adds_to_one(job.counts)}; }
inline MemoryUses uses_of_codec(const kernels::TagcEncodeJob& job) {
  return {writes_one(job.state), writes(job.rows, 16 * job.shape.num_blocks), adds_to_one(job.counts)};
}
inline MemoryUses uses_of_codec(const kernels::TagcFlatEncodeJob& job) {
  MemoryUses uses = uses_of_codec(static_cast<const kernels::TagcEncodeJob&>(job));
  uses.push_back(writes(job.wire_index, 8 * job.shape.index_words()));
  uses.push_back(writes(job.cells, job.shape.sketch_bytes()));
  return uses;
}
inline MemoryUses uses_of_codec(const kernels::TagcDecodeJob& job) {
  return {writes(job.found, 4 * job.num_places()), writes(job.rows, 16 * job.shape.num_blocks)};
}

template <typename Job>
constexpr bool kEncodesPieces = std::is_base_of_v<kernels::EncodeJobBase, Job>;

// All that a job uses.
template <typename Job>
MemoryUses uses_of(const Job& job) {
  MemoryUses uses;
  const auto add = [&](const Job& part) {
    for (const MemoryUses& more : {uses_of_any_codec(part), uses_of_codec(part)}) {
      uses.insert(uses.end(), more.begin(), more.end());
    }
  };
  if constexpr (kEncodesPieces<Job>) {
    for (int64_t i = 0; i < job.num_pieces; ++i) {
      Job of_piece = job;
      of_piece.go_to(i);
      add(of_piece);
    }
  } else {
    add(job);
  }
  return uses;
}

// What people and traces call it.
template <typename Job>
constexpr const char* name_of() {
  return kEncodesPieces<Job>                              ? "encode"
         : std::is_same_v<Job, kernels::TagcFlatMergeJob> ? "merge"
         : std::is_same_v<Job, kernels::WeightEncodeJob>  ? "encode weights"
         : std::is_same_v<Job, kernels::WeightDecodeJob>  ? "decode weights"
         : std::is_same_v<Job, kernels::ConvertJob>       ? "convert"
         : std::is_same_v<Job, kernels::MultiplyJob>      ? "multiply"
         : std::is_same_v<Job, kernels::AddJob>           ? "add"
         : std::is_same_v<Job, kernels::SquaredErrorJob>  ? "squared error"
         : std::is_same_v<Job, kernels::DropResidualJob>  ? "drop residual after spike"
         : std::is_same_v<Job, kernels::SetContextsJob>   ? "set contexts"
         : std::is_same_v<Job, kernels::NextStepJob>      ? "next step"
         : std::is_same_v<Job, kernels::RefuseUnitsJob>   ? "compare units"
                                                          : "decode";
}

}  // namespace isthmus::test
