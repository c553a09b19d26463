// The passes of one encoding and one decoding of codec `tagc`, in their order; kernels/block/passes.h says what an
// executor is. docs/cuda.md says what each pass reads and writes.
#pragma once

#include <algorithm>

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
  run_for_pieces(executor, Prepare<Piece>{job}, 1, Prepare<Piece>::kMaxSharedBytes);
  const bool aligned = pieces_are_aligned(job, 4 * sizeof(Piece)) && residuals_are_aligned(job, 16);
  const int64_t num_whole_tiles = aligned ? job.shape.num_elements / kMaxBlockElements : 0;
  run_for_pieces(executor, Add{job, num_whole_tiles}, Add::num_turns(job.shape), Add::kMaxSharedBytes);
}

template <typename Executor>
void select_elements(Executor& executor, const TagcEncodeJob& job) {
  const int64_t word_groups = divide_up(2 * job.shape.index_words(), kPassThreads);
  with_piece_type(job.piece.dtype, [&]<typename Piece>(Piece) { add_and_mark<Piece>(executor, job); });
  run_for_pieces(executor, MarkAll{job}, word_groups, MarkAll::kMaxSharedBytes);
  for (int digit = 1; digit < kNumDigits; ++digit) {
    run_for_pieces(executor, CountDigit{job, digit}, word_groups, CountDigit::kMaxSharedBytes);
  }
  run_for_pieces(executor, CountTies{job}, word_groups, CountTies::kMaxSharedBytes);
  run_for_pieces(executor, ApplyThreshold{job}, num_tiles(job.shape), SpreadTile::shared_bytes(job.shape));
}

template <bool kTablesInShared, typename Executor>
void peel_and_insert(Executor& executor, const TagcEncodeJob& job, int64_t table_bytes_in_shared) {
  using Hold = HoldBack<kTablesInShared>;
  const int64_t word_groups = divide_up(2 * job.shape.index_words(), kPassThreads);
  run_for_pieces(executor, PeelIndex<kTablesInShared>{job}, num_slabs(job.shape), table_bytes_in_shared);
  run_for_pieces(executor, Hold{job}, num_slabs(job.shape), Hold::kCandidateBytes + table_bytes_in_shared);
  with_cells(job.shape.cell_type, [&]<typename Cells>(Cells) {
    using Insert = InsertValues<kTablesInShared, Cells>;
    if constexpr (Cells::kIsScaled) {
      run_for_pieces(executor, FindPeaks{job}, word_groups, 0);
    }
    run_for_pieces(executor, Insert{job, Insert::words_of_stripe(job.shape, Insert::kStripeBytes)}, word_groups, 0);
  });
}

template <typename Executor>
void peel_and_insert(Executor& executor, const TagcEncodeJob& job) {
  if (tables_fit_shared(job.shape)) {
    peel_and_insert<true>(executor, job, table_bytes(job.shape));
  } else {
    peel_and_insert<false>(executor, job, 0);
  }
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
  run_for_pieces(executor, Seal{job}, checksum_groups(job.packet_bytes), 0);
}

// As many groups as the largest task needs, limited to those that may write parts of checksums.
inline int64_t groups_to_open(const TagcDecodeJob& job) {
  const int64_t groups = std::max({checksum_groups(job.packet_bytes), job.num_packets * num_tiles(job.shape),
                                   divide_up(job.sum.num_elements, kSumAtOnce * OpenPackets::kThreads)});
  return std::min(groups, ChecksumParts::kMaxGroups);
}

template <typename Executor>
void run_passes(Executor& executor, const TagcDecodeJob& job) {
  if (job.num_packets == 0) {
    return;
  }
  executor.run(OpenPackets{job}, groups_to_open(job), SpreadTile::shared_bytes(job.shape));
  const int64_t slabs = num_slabs(job.shape) * (job.to_places ? job.num_packets : 1);
  with_cells(job.shape.cell_type, [&]<typename Cells>(Cells) {
    if (tables_fit_shared(job.shape)) {
      executor.run(PeelPackets<true, Cells>{job}, slabs, table_bytes(job.shape));
    } else {
      executor.run(PeelPackets<false, Cells>{job}, slabs, 0);
    }
  });
}

// A single tier: what is chosen is not peeled before it is sent.
template <typename Executor>
void run_passes(Executor& executor, const TagcFlatEncodeJob& job) {
  select_elements(executor, job);
  executor.clear(job.cells, job.num_pieces * job.shape.sketch_bytes());
  if (tables_fit_shared(job.shape)) {
    run_for_pieces(executor, InsertSums<true>{job}, num_slabs(job.shape), 0);
  } else {
    run_for_pieces(executor, InsertSums<false>{job}, num_slabs(job.shape), 0);
  }
}

template <typename Executor>
void run_passes(Executor& executor, const TagcFlatMergeJob& job) {
  if (job.num_words > 0) {
    executor.run(MergeIndex{job}, divide_up(job.num_words, kPassThreads), 0);
  }
}

template <typename Executor>
void run_passes(Executor& executor, const TagcFlatDecodeJob& job) {
  executor.clear(job.out, static_cast<int64_t>(sizeof(float)) * job.shape.num_elements);
  executor.run(OpenIndex{job}, num_tiles(job.shape), SpreadTile::shared_bytes(job.shape));
  if (tables_fit_shared(job.shape)) {
    executor.run(PeelSums<true>{job}, num_slabs(job.shape), table_bytes(job.shape));
  } else {
    executor.run(PeelSums<false>{job}, num_slabs(job.shape), 0);
  }
}

}  // namespace isthmus::kernels::ISTHMUS_KERNEL_NAMESPACE
