// The passes that peel in codec `tagc`. The sender peels the index and holds back what does not peel; the receiver
// peels packets with their values.
#pragma once

#include "kernels/block/packet_passes.h"
#include "kernels/elementwise/shard_values.h"
#include "kernels/tagc/peeling.h"

namespace isthmus::kernels::ISTHMUS_KERNEL_NAMESPACE {

// Peels all keys of the index without values. The rest stays in the slabs' scratch memory.
template <bool kTablesInShared>
struct PeelIndex {
  static constexpr int kThreads = kTablesInShared ? 1024 : 768;  // 64 or 80 registers a thread
  static constexpr int64_t kMaxSharedBytes = kTablesInShared ? kMaxSharedTableBytes : 0;

  TagcEncodeJob job;

  template <typename Group>
  ISTHMUS_DEVICE void operator()(Group& group) const {
    for_each_by_group(group, num_slabs(job.shape), [&](int64_t number) {
      const Slab<kTablesInShared> slab(job.shape, job.slabs, job.rows, number,
                                       table_of<kTablesInShared>(group, job.shape, job.slabs, number, 0));
      const PeelOutcome outcome = peel_slab(group, slab, job.max_rounds, [](auto...) {});
      if (group.thread() == 0) {
        job.slabs.left[number] = outcome.left ? 1 : 0;
        group.fetch_max(job.state->rounds, static_cast<uint32_t>(outcome.rounds));
      }
    });
  }
};

// If keys were left, lets in some that peel: each with a cell that no earlier key took, from a block on that moves from
// step to step. The others are held back: they leave the index.
template <bool kTablesInShared>
struct HoldBack {
  static constexpr int kThreads = 512;
  static constexpr int64_t kWindow = kThreads;  // candidates that are decided at once
  struct Candidate {
    int64_t block;
    uint32_t keys;
    uint32_t row[3];
  };
  static constexpr int64_t kCandidateBytes = kWindow * sizeof(Candidate);
  static constexpr int64_t kMaxSharedBytes = kCandidateBytes + (kTablesInShared ? kMaxSharedTableBytes : 0);

  TagcEncodeJob job;

  template <typename Group>
  ISTHMUS_DEVICE void operator()(Group& group) const {
    auto* candidates = &group.template shared<Candidate>();
    for_each_by_group(group, num_slabs(job.shape), [&](int64_t number) {
      if (job.slabs.left[number] == 0) {
        return;
      }
      const Slab<kTablesInShared> slab(job.shape, job.slabs, job.rows, number,
                                       table_of<kTablesInShared>(group, job.shape, job.slabs, number, kCandidateBytes));
      // The index's bytes of this slab, one block after another.
      uint8_t* index = job.packet + job.layout.index + number;
      const int64_t stride = num_slabs(job.shape);
      const auto leave_out = [&](int64_t block, uint32_t keys, const uint32_t*) {
        index[block * stride] &= static_cast<uint8_t>(~keys);
        return keys;
      };
      slab.change_keys(group, leave_out);
      admit(group, slab, index, candidates);
      slab.change_keys(group,
                       [&](int64_t block, uint32_t keys, const uint32_t*) { return keys & index[block * stride]; });
      peel_slab(group, slab, job.max_rounds - job.state->rounds, [](auto...) {});
      slab.change_keys(group, leave_out);
      group.sync();
    });
  }

 private:
  // Calls visit(block, keys) for this thread's run of blocks. The runs of all threads are all blocks, in order.
  template <typename Group, typename Visit>
  static ISTHMUS_DEVICE void for_each_of_run(const Group& group, const Slab<kTablesInShared>& slab, Visit visit) {
    const int64_t run = divide_up(slab.num_words, group.size());
    const int64_t end = (group.thread() + 1) * run;
    for (int64_t w = group.thread() * run; w < end && w < slab.num_words; ++w) {
      const uint32_t word = slab.keys[w];
      for (int b = 0; word != 0 && b < 4; ++b) {
        const uint32_t keys = word >> (8 * b) & 0xff;
        if (keys != 0) {
          visit(4 * w + b, keys);
        }
      }
    }
  }

  // Adds to the index the slab's keys that are let in. Keys come one after another, but for eight columns at once: one
  // thread decides, the others fetch. It begins and ends with a barrier.
  template <typename Group>
  ISTHMUS_DEVICE void admit(Group& group, const Slab<kTablesInShared>& slab, uint8_t* index,
                            Candidate* candidates) const {
    slab.degrees.clear_all(group);
    group.sync();
    const int64_t first = tagc_first_block(job.shape.num_blocks, job.context->step);
    uint32_t blocks = 0;
    uint64_t before_first = 0;
    for_each_of_run(group, slab, [&](int64_t block, uint32_t) {
      ++blocks;
      before_first += block < first ? 1 : 0;
    });
    uint32_t num_blocks = 0;
    const uint32_t position = group.exclusive_sum(blocks, num_blocks);
    const auto start = static_cast<uint32_t>(group.sum(before_first));
    for (int64_t window = 0; window < num_blocks; window += kWindow) {
      uint32_t next = position;
      for_each_of_run(group, slab, [&](int64_t block, uint32_t keys) {
        const int64_t place = int64_t{next} - start + (next < start ? num_blocks : 0) - window;
        ++next;
        if (place >= 0 && place < kWindow) {
          const auto rows = slab.rows[block];
          candidates[place] = {block, keys, {rows.value[0], rows.value[1], rows.value[2]}};
        }
      });
      group.sync();
      const int64_t count = num_blocks - window < kWindow ? num_blocks - window : kWindow;
      for (int64_t c = 0; group.thread() == 0 && c < count; ++c) {
        admit_one(group, slab.degrees, candidates[c]);
      }
      group.sync();
      for_each_of_group(group, count, [&](int64_t c) {
        index[candidates[c].block * num_slabs(job.shape)] |= static_cast<uint8_t>(candidates[c].keys);
      });
      group.sync();
    }
  }

  // Removes the candidate's keys without a cell that no earlier key took; the others take all their cells.
  template <typename Group>
  static ISTHMUS_DEVICE void admit_one(Group& group, const Degrees& taken, Candidate& candidate) {
    const uint32_t* row = candidate.row;
    candidate.keys &= ~(taken.some(row[0]) & taken.some(row[1]) & taken.some(row[2]));
    for (int i = 0; i < 3; ++i) {
      taken.add(group, row[i], candidate.keys);
    }
  }
};

// Peels all packets with values, one after another in each slab: sum += value, and at the end out = scale * sum.
// Packets that go to places are peeled all at once. If one is refused, nothing is done; each group finds that out for
// itself, so that none waits for another. The last group reports.
template <bool kTablesInShared>
struct PeelPackets {
  static constexpr int kThreads = 640;  // 96 registers a thread: with 80, as many as 768 had, some are spilled
  static constexpr int64_t kMaxSharedBytes = kTablesInShared ? kMaxSharedTableBytes : 0;

  TagcDecodeJob job;

  template <typename Group>
  ISTHMUS_DEVICE void operator()(Group& group) const {
    if (job.fault->reported == 0 && !is_one_refused(group)) {
      const int64_t slabs = num_slabs(job.shape);
      for_each_by_group(group, job.to_places ? job.num_packets * slabs : slabs, [&](int64_t turn) {
        const int64_t first = job.to_places ? turn / slabs : 0;
        const int64_t end = job.to_places ? first + 1 : job.num_packets;
        for (int64_t i = first; i < end; ++i) {
          peel_packet(group, job.place_of(i), turn % slabs, turn);
        }
        if (!job.to_places) {
          end_slab(group, turn);
        }
      });
    }
    if (group.is_last(job.state->arrived)) {
      finish_decoding(group, job);
    }
  }

 private:
  // All threads of a group call it; every group gets the same answer.
  template <typename Group>
  ISTHMUS_DEVICE bool is_one_refused(Group& group) const {
    bool refused = false;
    for (int64_t i = 0; i < job.num_packets; ++i) {
      const int64_t packet = job.place_of(i);
      refused |= check_header(group, job, packet);
      const uint32_t found = job.found[packet];
      refused |= found != 0;
      if (found != 0 && group.thread() == 0) {
        group.fetch_min(job.fault->code, DeviceFault::code_of(packet, static_cast<FaultKind>(lowest_bit(found))));
      }
    }
    return refused;
  }

  // out = scale * sum, for a slab whose sums are complete.
  template <typename Group>
  ISTHMUS_DEVICE void end_slab(const Group& group, int64_t number) const {
    if (job.out.data == job.sum.data && job.scale == 1) {
      return;
    }
    for_each_of_group(group, job.shape.num_blocks, [&](int64_t block) {
      const int64_t first = block * job.shape.block_elements + kSlabColumns * number;
      const auto sums =
          load_neighbours<kSlabColumns>(static_cast<const float*>(job.sum.data) + first, job.sum.num_elements - first);
      store_scaled_values<kSlabColumns>(sums, job.scale, job.out, first);
    });
  }

  // place: the slab's part of the scratch memory, among the slabs that are peeled at once.
  template <typename Group>
  ISTHMUS_DEVICE void peel_packet(Group& group, int64_t packet, int64_t number, int64_t place) const {
    const TagcShape& shape = job.shape;
    const Slab<kTablesInShared> slab(shape, job.slabs, job.rows, packet * num_slabs(shape) + number,
                                     table_of<kTablesInShared>(group, shape, job.slabs, place, 0));
    const uint8_t* bytes = job.packets + packet * job.packet_bytes;
    float* out =
        static_cast<float*>(job.sum.data) + (job.to_places ? packet * shape.num_elements : 0) + kSlabColumns * number;
    uint32_t* cells = job.cells + place * kSlabColumns * shape.num_rows;
    add_nan(group, bytes, number, out);
    copy_cells(group, reinterpret_cast<const uint32_t*>(bytes + job.layout.sketch) + kSlabColumns * number, cells);
    const PeelOutcome outcome =
        peel_slab(group, slab, job.max_rounds,
                  [&](int64_t block, uint32_t peeled, uint32_t single0, uint32_t single1, const uint32_t* row) {
                    recover(group, peeled, single0, single1, row, cells, out + block * shape.block_elements);
                  });
    bool cells_left = false;
    for_each_of_group(group, kSlabColumns * shape.num_rows, [&](int64_t i) { cells_left |= cells[i] != 0; });
    cells_left = group.any(cells_left);
    if (group.thread() == 0 && (outcome.left || cells_left)) {
      const FaultKind kind = outcome.left ? FaultKind::kDoesNotPeel : FaultKind::kCellsLeft;
      group.fetch_min(job.fault->code, DeviceFault::code_of(packet, kind));
    }
  }

  // A row's eight cells, neighbours in the packet, are 32 bytes in the slab's copy.
  template <typename Group>
  ISTHMUS_DEVICE void copy_cells(const Group& group, const uint32_t* sketch, uint32_t* cells) const {
    using FourCells = SeveralOf<uint32_t, 4>;
    for_each_of_group(group, 2 * job.shape.num_rows, [&](int64_t i) {
      reinterpret_cast<FourCells*>(cells)[i] =
          *reinterpret_cast<const FourCells*>(sketch + i / 2 * job.shape.block_elements + 4 * (i % 2));
    });
  }

  // Takes the values of a block's `peeled` keys out of the sketch, each from the first cell that it has alone, and adds
  // them to `out`. Four loads are in flight at once.
  template <typename Group>
  static ISTHMUS_DEVICE void recover(Group& group, uint32_t peeled, uint32_t single0, uint32_t single1,
                                     const uint32_t* row, uint32_t* cells, float* out) {
    ISTHMUS_DO_NOT_UNROLL
    for (int first = 0; first < kSlabColumns; first += 4) {
      uint32_t value[4];
      float sum[4];
      ISTHMUS_UNROLL
      for (int i = 0; i < 4; ++i) {
        const int c = first + i;
        if ((peeled >> c & 1) != 0) {
          const uint32_t single = (single0 >> c & 1) != 0 ? row[0] : (single1 >> c & 1) != 0 ? row[1] : row[2];
          value[i] = cells[kSlabColumns * single + c];
          sum[i] = out[c];
        }
      }
      ISTHMUS_UNROLL
      for (int i = 0; i < 4; ++i) {
        const int c = first + i;
        if ((peeled >> c & 1) != 0) {
          for (int r = 0; r < 3; ++r) {
            group.apply_xor(cells[kSlabColumns * row[r] + c], value[i]);
          }
          out[c] = sum[i] + float_of(value[i]);
        }
      }
    }
  }

  // Visits the marked elements of flagged blocks.
  template <typename Group>
  ISTHMUS_DEVICE void add_nan(const Group& group, const uint8_t* bytes, int64_t number, float* out) const {
    const auto* flags = reinterpret_cast<const uint64_t*>(bytes + job.layout.flags);
    const uint8_t* index = bytes + job.layout.index + number;
    for_each_of_group(group, job.shape.flag_words(), [&](int64_t w) {
      for_each_bit(flags[w], 64 * w, [&](int64_t block) {
        for_each_bit(uint32_t{index[block * num_slabs(job.shape)]}, 0,
                     [&](int64_t i) { out[block * job.shape.block_elements + i] = float_of(kNanBits); });
      });
    });
  }
};

}  // namespace isthmus::kernels::ISTHMUS_KERNEL_NAMESPACE
