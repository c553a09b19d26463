// The passes of one encoding and one decoding of codec `tagc`, in their order; kernels/block/passes.h says what an
// executor is.
#pragma once

#include <algorithm>
#include <type_traits>

#include "kernels/block/packet_passes.h"
#include "kernels/tagc/add_passes.h"
#include "kernels/tagc/check_passes.h"
#include "kernels/tagc/flat_passes.h"
#include "kernels/tagc/insert_passes.h"
#include "kernels/tagc/peel_passes.h"
#include "kernels/tagc/select_passes.h"

namespace isthmus::kernels::ISTHMUS_KERNEL_NAMESPACE {

template <typename Piece, typename Executor>
void add_and_mark(Executor& executor, const TagcEncodeJob& job) {
  using Add = AddAndMark<Piece>;
  run_for_pieces(executor, Prepare<Piece>{job}, 1);
  const bool aligned = pieces_are_aligned(job, 4 * sizeof(Piece)) && residuals_are_aligned(job, 16);
  const int64_t num_whole_tiles = aligned ? job.shape.num_elements / kMaxBlockElements : 0;
  run_for_pieces(executor, Add{job, num_whole_tiles}, Add::num_turns(job.shape));
}

template <typename Executor>
void select_elements(Executor& executor, const TagcEncodeJob& job) {
  const int64_t word_groups = divide_up(2 * job.shape.index_words(), kPassThreads);
  with_value_type(job.piece.dtype, [&]<typename Piece>(Piece) { add_and_mark<Piece>(executor, job); });
  for (int digit = 0; digit < kNumDigits; ++digit) {
    run_for_pieces(executor, CountDigit{job, digit}, word_groups);
  }
  run_for_pieces(executor, CountTies{job}, word_groups);
  run_for_pieces(executor, ApplyThreshold{job}, num_tiles(job.shape), SpreadTile::shared_bytes(job.shape));
}

// visit(std::true_type{}, the bytes of a table) where the degrees of a slab fit into shared memory; else
// visit(std::false_type{}, 0).
template <typename Visit>
void with_tables(const TagcShape& shape, Visit visit) {
  if (tables_fit_shared(shape)) {
    visit(std::true_type{}, table_bytes(shape));
  } else {
    visit(std::false_type{}, 0);
  }
}

template <typename Executor>
void peel_and_insert(Executor& executor, const TagcEncodeJob& job) {
  const int64_t word_groups = divide_up(2 * job.shape.index_words(), kPassThreads);
  with_tables(job.shape, [&]<typename InShared>(InShared, int64_t shared_bytes) {
    using Hold = HoldBack<InShared::value>;
    run_for_pieces(executor, PeelIndex<InShared::value>{job}, num_slabs(job.shape), shared_bytes);
    run_for_pieces(executor, Hold{job}, num_slabs(job.shape), Hold::kCandidateBytes + shared_bytes);
    using Insert = InsertValues<InShared::value>;
    run_for_pieces(executor, Insert{job, Insert::words_of_stripe(job.shape, Insert::kStripeBytes)}, word_groups);
  });
}

template <typename Executor>
void run_passes(Executor& executor, const TagcEncodeJob& job) {
  if (job.shape.num_blocks > 0) {
    select_elements(executor, job);
    peel_and_insert(executor, job);
  } else {
    for (int64_t i = 0; i < job.num_pieces; ++i) {
      TagcEncodeJob of_piece = job;
      of_piece.go_to(i);
      executor.clear(of_piece.arrived, sizeof(*of_piece.arrived));
      executor.clear(of_piece.sealed, sizeof(*of_piece.sealed));
      executor.clear(of_piece.packet, of_piece.packet_bytes);
    }
  }
  run_for_pieces(executor, Seal{job}, checksum_groups(job.packet_bytes));
}

// As many groups as the largest task needs, limited to those that may write parts of checksums.
inline int64_t groups_to_open(const TagcDecodeJob& job) {
  const int64_t groups = std::max({checksum_groups(job.packet_bytes), job.num_packets * num_tiles(job.shape),
                                   divide_up(job.sum.num_elements, kSumAtOnce * kPassThreads)});
  return std::min(groups, ChecksumParts::kMaxGroups);
}

template <typename Executor>
void run_passes(Executor& executor, const TagcDecodeJob& job) {
  if (job.num_packets == 0) {
    return;
  }
  executor.run(OpenPackets{job}, groups_to_open(job), SpreadTile::shared_bytes(job.shape));
  const int64_t slabs = num_slabs(job.shape) * (job.to_places ? job.num_packets : 1);
  with_tables(job.shape, [&]<typename InShared>(InShared, int64_t shared_bytes) {
    executor.run(PeelPackets<InShared::value>{job}, slabs, shared_bytes);
  });
}

// A single tier: what is chosen is not peeled before it is sent.
template <typename Executor>
void run_passes(Executor& executor, const TagcFlatEncodeJob& job) {
  select_elements(executor, job);
  executor.clear(job.cells, job.num_pieces * job.shape.sketch_bytes());
  with_tables(job.shape, [&]<typename InShared>(InShared, int64_t) {
    run_for_pieces(executor, InsertSums<InShared::value>{job}, num_slabs(job.shape));
  });
}

template <typename Executor>
void run_passes(Executor& executor, const TagcFlatMergeJob& job) {
  if (job.num_words > 0) {
    executor.run(MergeIndex{job}, divide_up(job.num_words, kPassThreads));
  }
}

template <typename Executor>
void run_passes(Executor& executor, const TagcFlatDecodeJob& job) {
  executor.clear(job.out, static_cast<int64_t>(sizeof(float)) * job.shape.num_elements);
  executor.run(OpenIndex{job}, num_tiles(job.shape), SpreadTile::shared_bytes(job.shape));
  with_tables(job.shape, [&]<typename InShared>(InShared, int64_t shared_bytes) {
    executor.run(PeelSums<InShared::value>{job}, num_slabs(job.shape), shared_bytes);
  });
}

}  // namespace isthmus::kernels::ISTHMUS_KERNEL_NAMESPACE
