// Peeling of codec `tagc` on many groups. Columns of the sketch have nothing to do with each other: a group takes a
// word of 32 of them and peels it alone, all rounds, with its degrees in shared memory. So rounds need no barrier
// between groups, and their number needs no launches.
#pragma once

#include "kernels/passes.h"
#include "kernels/tagc_block.h"
#include "kernels/tagc_job.h"
#include "kernels/tagc_select_passes.h"

namespace isthmus::kernels::ISTHMUS_KERNEL_NAMESPACE {

// The part of ColumnScratch that belongs to one word of columns.
struct Column {
  uint32_t* keys;
  uint32_t* active;
  uint32_t* once;
  uint32_t* twice;

  // shared: memory of the group for the tables, where they fit.
  ISTHMUS_DEVICE Column(const TagcShape& shape, const ColumnScratch& scratch, int64_t column, uint32_t* shared)
      : keys(scratch.keys + column * shape.num_blocks),
        active(scratch.active + column * shape.num_blocks),
        once(shared != nullptr ? shared : scratch.tables + column * 2 * shape.num_rows),
        twice(once + shape.num_rows) {}
};

// Takes the column's keys out of an index, flagged blocks apart, and lists the blocks that have some. Returns their
// number. Ends with a barrier.
template <typename Group>
ISTHMUS_DEVICE uint32_t gather_keys(Group& group, const TagcShape& shape, const uint64_t* flags, const uint32_t* index,
                                    int64_t column_number, const Column& column) {
  const int64_t words = shape.block_elements / 32;
  const uint32_t num_active = compact<uint32_t>(
      group, shape.num_blocks,
      [&](int64_t block, uint32_t& active) {
        const uint32_t keys = is_flagged(flags, block) ? 0 : index[block * words + column_number];
        column.keys[block] = keys;
        active = static_cast<uint32_t>(block);
        return keys != 0;
      },
      [&](uint32_t position, uint32_t block) { column.active[position] = block; });
  group.sync();
  return num_active;
}

// Leaves in `once` the cells that hold exactly one of the keys that are left. Ends with a barrier.
template <typename Group>
ISTHMUS_DEVICE void find_singles(Group& group, const TagcShape& shape, const BlockRows* rows, const Column& column,
                                 uint32_t num_active) {
  clear(group, column.once, shape.num_rows);
  clear(group, column.twice, shape.num_rows);
  group.sync();
  for_each_of_group(group, num_active, [&](int64_t a) {
    const uint32_t block = column.active[a];
    for (const uint32_t row : rows[block].row) {
      count_keys(ThreadOf<Group>(group), column.keys + block, 1, column.once + row, column.twice + row);
    }
  });
  group.sync();
  keep_singles(group, shape.num_rows, column.once, column.twice);
  group.sync();
}

// Peels in rounds, at most `max_rounds`. recover(block, peeled, single0, single1) takes values out of the sketch.
// Returns the rounds in which something peeled; num_active: the blocks with keys, before and after. Ends with a
// barrier.
template <typename Group, typename Recover>
ISTHMUS_DEVICE int64_t peel_column(Group& group, const TagcShape& shape, const BlockRows* rows, const Column& column,
                                   uint32_t& num_active, int64_t max_rounds, Recover recover) {
  int64_t rounds = 0;
  bool progress = true;
  while (progress && num_active > 0 && rounds < max_rounds) {
    find_singles(group, shape, rows, column, num_active);
    bool peeled_some = false;
    num_active = compact<uint32_t>(
        group, num_active,
        [&](int64_t a, uint32_t& block) {
          block = column.active[a];
          const uint32_t* row = rows[block].row;
          const uint32_t* single0 = column.once + row[0];
          const uint32_t* single1 = column.once + row[1];
          uint32_t peeled = 0;
          const BlockStatus status = take_single_keys(ThreadOf<Group>(group), single0, single1, column.once + row[2], 1,
                                                      column.keys + block, &peeled);
          if (status.peeled) {
            recover(block, &peeled, single0, single1);
            peeled_some = true;
          }
          return status.left;
        },
        [&](uint32_t position, uint32_t block) { column.active[position] = block; });
    progress = group.any(peeled_some);
    rounds += progress ? 1 : 0;
  }
  return rounds;
}

ISTHMUS_DEVICE uint32_t count_bits(uint32_t word) {
#ifdef __CUDA_ARCH__
  return __popc(word);
#else
  return __builtin_popcount(word);
#endif
}

// Peels all keys of the index without values. What is left stays in the columns' scratch memory.
template <bool kTablesInShared>
struct PeelIndex {
  static constexpr int kThreads = 1024;
  static constexpr int64_t kMaxSharedBytes = kTablesInShared ? kMaxSharedTableBytes : 0;

  TagcEncodeJob job;

  template <typename Group>
  ISTHMUS_DEVICE void operator()(Group& group) const {
    const auto* flags = reinterpret_cast<const uint64_t*>(job.packet + job.layout.flags);
    const auto* index = reinterpret_cast<const uint32_t*>(job.packet + job.layout.index);
    uint32_t* shared = kTablesInShared ? &group.template shared<uint32_t>() : nullptr;
    for_each_by_group(group, job.shape.block_elements / 32, [&](int64_t number) {
      const Column column(job.shape, job.columns, number, shared);
      uint32_t num_active = gather_keys(group, job.shape, flags, index, number, column);
      uint64_t chosen = 0;
      for_each_of_group(group, num_active, [&](int64_t a) { chosen += count_bits(column.keys[column.active[a]]); });
      chosen = group.sum(chosen);
      const int64_t rounds =
          peel_column(group, job.shape, job.rows, column, num_active, job.max_rounds, [](auto...) {});
      if (group.thread() == 0) {
        job.columns.num_active[number] = num_active;
        group.fetch_max(job.state->rounds, static_cast<uint32_t>(rounds));
        group.fetch_add(job.counts->chosen_elements, chosen);
      }
      group.sync();
    });
  }
};

// Where keys were left, lets in some that peel: each that has a cell which none before it took, beginning at a block
// that moves on from step to step. Takes out of the index what is held back.
template <bool kTablesInShared>
struct HoldBack {
  static constexpr int kThreads = 512;
  struct Candidate {
    uint32_t keys;
    uint32_t row[3];
  };
  static constexpr int64_t kMaxSharedBytes =
      kThreads * sizeof(Candidate) + (kTablesInShared ? kMaxSharedTableBytes : 0);

  TagcEncodeJob job;

  template <typename Group>
  ISTHMUS_DEVICE void operator()(Group& group) const {
    auto* candidates = &group.template shared<Candidate>();
    uint32_t* shared = kTablesInShared ? reinterpret_cast<uint32_t*>(candidates + kThreads) : nullptr;
    for_each_by_group(group, job.shape.block_elements / 32, [&](int64_t number) {
      uint32_t num_active = job.columns.num_active[number];
      if (num_active > 0) {
        const Column column(job.shape, job.columns, number, shared);
        change_index(group, number, column, num_active, [](uint32_t word, uint32_t left) { return word & ~left; });
        admit(group, column, num_active, candidates);
        change_index(group, number, column, num_active,
                     [](uint32_t word, uint32_t admitted) { return word | admitted; });
        peel_column(group, job.shape, job.rows, column, num_active, job.max_rounds - job.state->rounds, [](auto...) {});
        change_index(group, number, column, num_active, [](uint32_t word, uint32_t left) { return word & ~left; });
      }
    });
  }

 private:
  // Ends with a barrier.
  template <typename Group, typename Change>
  ISTHMUS_DEVICE void change_index(Group& group, int64_t number, const Column& column, uint32_t num_active,
                                   Change change) const {
    auto* index = reinterpret_cast<uint32_t*>(job.packet + job.layout.index) + number;
    for_each_of_group(group, num_active, [&](int64_t a) {
      const uint32_t block = column.active[a];
      uint32_t& word = index[block * (job.shape.block_elements / 32)];
      word = change(word, column.keys[block]);
    });
    group.sync();
  }

  // As tagc_first_block() on the host.
  ISTHMUS_DEVICE int64_t first_block() const {
    constexpr uint64_t kStride = 0x9e3779b9;
    const uint64_t place = (job.context->step * kStride) & 0xffffffff;
    return static_cast<int64_t>(place * static_cast<uint64_t>(job.shape.num_blocks) >> 32);
  }

  // Keys come one after the other, but for all columns of the word at once: one thread decides, the others fetch.
  template <typename Group>
  ISTHMUS_DEVICE void admit(Group& group, const Column& column, uint32_t num_active, Candidate* candidates) const {
    const int64_t first = first_block();
    uint64_t before = 0;
    for_each_of_group(group, num_active, [&](int64_t a) { before += column.active[a] < first ? 1 : 0; });
    const auto start = static_cast<int64_t>(group.sum(before));
    uint32_t* taken = column.once;
    clear(group, taken, job.shape.num_rows);
    for (int64_t base = 0; base < num_active; base += group.size()) {
      const int64_t a = base + group.thread();
      const int64_t end = base + group.size() < num_active ? group.size() : num_active - base;
      const uint32_t block = a < num_active ? column.active[(start + a) % num_active] : 0;
      if (a < num_active) {
        const uint32_t* row = job.rows[block].row;
        candidates[group.thread()] = {column.keys[block], {row[0], row[1], row[2]}};
      }
      group.sync();
      for (int64_t c = 0; group.thread() == 0 && c < end; ++c) {
        const uint32_t* row = candidates[c].row;
        admit_keys(ThreadOf<Group>(group), taken + row[0], taken + row[1], taken + row[2], 1, &candidates[c].keys);
      }
      group.sync();
      if (a < num_active) {
        column.keys[block] = candidates[group.thread()].keys;
      }
    }
    group.sync();
  }
};

// Moves the values that the index marks from residual (zero there afterwards) to the sketch.
struct InsertValues {
  static constexpr int kThreads = kPassThreads;
  static constexpr int64_t kMaxSharedBytes = 0;

  TagcEncodeJob job;

  template <typename Group>
  ISTHMUS_DEVICE void operator()(Group& group) const {
    auto* cells = reinterpret_cast<uint32_t*>(job.packet + job.layout.sketch);
    const int64_t words = job.shape.block_elements / 32;
    uint64_t kept = 0;
    for_each_index_word(group, job, [&](int64_t word, uint32_t marks) {
      if (marks == 0) {
        return;
      }
      const int64_t block = word / words;
      const BlockCells<XorCell> block_cells(job.rows[block], job.shape.block_elements, cells);
      for_each_bit(marks, 32 * (word % words), [&](int64_t column) {
        float& value = job.residual[block * job.shape.block_elements + column];
        block_cells.insert(ThreadOf<Group>(group), column, value);
        value = 0;
      });
      kept += count_bits(marks);
    });
    kept = group.sum(kept);
    if (group.thread() == 0) {
      group.fetch_add(job.counts->kept_elements, kept);
    }
  }
};

// Peels all packets with values, one after the other in each column: out += value. Nothing if one was refused.
template <bool kTablesInShared>
struct PeelPackets {
  static constexpr int kThreads = 1024;
  static constexpr int64_t kMaxSharedBytes = kTablesInShared ? kMaxSharedTableBytes : 0;

  TagcDecodeJob job;

  template <typename Group>
  ISTHMUS_DEVICE void operator()(Group& group) const {
    if (job.state->refused != 0) {
      return;
    }
    uint32_t* shared = kTablesInShared ? &group.template shared<uint32_t>() : nullptr;
    for_each_by_group(group, job.shape.block_elements / 32, [&](int64_t number) {
      const Column column(job.shape, job.columns, number, shared);
      for (int64_t packet = 0; packet < job.num_packets; ++packet) {
        peel_packet(group, packet, number, column);
      }
    });
  }

 private:
  template <typename Group>
  ISTHMUS_DEVICE void peel_packet(Group& group, int64_t packet, int64_t number, const Column& column) const {
    const uint8_t* bytes = job.packets + packet * job.layout.end;
    const auto* flags = reinterpret_cast<const uint64_t*>(bytes + job.layout.flags);
    const auto* index = reinterpret_cast<const uint32_t*>(bytes + job.layout.index);
    const int64_t columns = job.shape.block_elements;
    float* out = job.out + 32 * number;
    uint32_t* cells = job.cells + 32 * number;
    add_nan(group, flags, index + number, out);
    const auto* sketch = reinterpret_cast<const uint32_t*>(bytes + job.layout.sketch) + 32 * number;
    for_each_cell(group, [&](int64_t cell) { cells[cell] = sketch[cell]; });
    uint32_t num_active = gather_keys(group, job.shape, flags, index, number, column);
    peel_column(group, job.shape, job.rows, column, num_active, job.max_rounds,
                [&](uint32_t block, const uint32_t* peeled, const uint32_t* single0, const uint32_t* single1) {
                  const BlockCells<XorCell> block_cells(job.rows[block], columns, cells);
                  recover_values(ThreadOf<Group>(group), block_cells, peeled, 1, single0, single1,
                                 [&](int64_t c, float value) { out[block * columns + c] += value; });
                });
    bool cells_left = false;
    for_each_cell(group, [&](int64_t cell) { cells_left |= cells[cell] != 0; });
    cells_left = group.any(cells_left);
    if (group.thread() == 0 && (num_active > 0 || cells_left)) {
      const FaultKind kind = num_active > 0 ? FaultKind::kDoesNotPeel : FaultKind::kCellsLeft;
      group.fetch_min(job.fault->code, DeviceFault::code_of(packet, kind));
    }
  }

  // visit(cell) for the group's 32 columns of all rows.
  template <typename Group, typename Visit>
  ISTHMUS_DEVICE void for_each_cell(Group& group, Visit visit) const {
    for_each_of_group(group, 32 * job.shape.num_rows,
                      [&](int64_t i) { visit(i / 32 * job.shape.block_elements + i % 32); });
  }

  // The elements that are marked in flagged blocks.
  template <typename Group>
  ISTHMUS_DEVICE void add_nan(Group& group, const uint64_t* flags, const uint32_t* index, float* out) const {
    const int64_t columns = job.shape.block_elements;
    for_each_of_group(group, job.shape.num_blocks, [&](int64_t block) {
      if (is_flagged(flags, block)) {
        for_each_bit(index[block * (columns / 32)], 0,
                     [&](int64_t c) { out[block * columns + c] = float_of(kNanBits); });
      }
    });
  }
};

}  // namespace isthmus::kernels::ISTHMUS_KERNEL_NAMESPACE
