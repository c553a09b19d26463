// Peeling of codec `tagc` on many groups. Columns of the sketch have nothing to do with each other: a group takes a
// slab of eight and peels it alone, all rounds, with its degrees in shared memory. So rounds need no barrier between
// groups, and their number needs no launches.
#pragma once

#include "kernels/tagc/cells.h"
#include "kernels/tagc/slab.h"

namespace isthmus::kernels::ISTHMUS_KERNEL_NAMESPACE {

// Keys, and which of a row's eight cells hold one of them, or several. Two bytes a row, two rows a word.
class Degrees {
 public:
  ISTHMUS_DEVICE Degrees(uint32_t* words, int64_t num_words) : words_(words), num_words_(num_words) {}

  template <typename Group>
  ISTHMUS_DEVICE void clear_all(const Group& group) const {
    clear(group, words_, num_words_);
  }

  // Any thread, any order.
  template <typename Group>
  ISTHMUS_DEVICE void add(Group& group, uint32_t row, uint32_t keys) const {
    const uint32_t before = group.fetch_or(words_[row / 2], keys << shift(row)) >> shift(row);
    const uint32_t again = before & keys;
    if (again != 0) {
      group.fetch_or(words_[row / 2], again << (8 + shift(row)));
    }
  }

  ISTHMUS_DEVICE uint32_t some(uint32_t row) const { return words_[row / 2] >> shift(row) & 0xff; }
  // The cells that hold exactly one.
  ISTHMUS_DEVICE uint32_t single(uint32_t row) const {
    const uint32_t both = words_[row / 2] >> shift(row);
    return both & ~(both >> 8) & 0xff;
  }

 private:
  static ISTHMUS_DEVICE uint32_t shift(uint32_t row) { return 16 * (row % 2); }

  uint32_t* words_;
  int64_t num_words_;
};

// One slab while it is peeled. kTablesInShared: the degrees fit into the group's shared memory.
template <bool kTablesInShared>
struct Slab {
  uint32_t* keys;  // slab_words: a byte a block, those that are left
  int64_t num_words;
  RowTable<kTablesInShared> rows;
  Degrees degrees;

  // table: of the degrees.
  ISTHMUS_DEVICE Slab(const TagcShape& shape, const SlabScratch& scratch, uint32_t* rows_of_blocks, int64_t number,
                      uint32_t* table)
      : keys(scratch.keys + number * slab_words(shape)),
        num_words(slab_words(shape)),
        rows(rows_of_blocks),
        degrees(table, table_words(shape)) {}

  // keys of each block that has some = change(block, keys, rows). One thread a word, the same each time. Four words are
  // fetched at once: in later rounds most hold nothing.
  template <typename Group, typename Change>
  ISTHMUS_DEVICE void change_keys(const Group& group, Change change) const {
    for (int64_t base = group.thread(); base < num_words; base += 4 * group.size()) {
      const uint64_t low = load_word(base) | uint64_t{load_word(base + group.size())} << 32;
      const uint64_t high = load_word(base + 2 * group.size()) | uint64_t{load_word(base + 3 * group.size())} << 32;
      ISTHMUS_DO_NOT_UNROLL
      for (int i = 0; i < 4; ++i) {
        const auto word = static_cast<uint32_t>((i < 2 ? low : high) >> (32 * (i % 2)));
        if (word != 0) {
          change_word(base + i * group.size(), word, change);
        }
      }
    }
  }

 private:
  ISTHMUS_DEVICE uint32_t load_word(int64_t w) const { return w < num_words ? keys[w] : 0; }

  template <typename Change>
  ISTHMUS_DEVICE void change_word(int64_t w, uint32_t word, Change change) const {
    typename RowTable<kTablesInShared>::Stored rows_of_word[4] = {};
    ISTHMUS_UNROLL
    for (int b = 0; b < 4; ++b) {
      if ((word >> (8 * b) & 0xff) != 0) {
        rows_of_word[b] = rows[4 * w + b];
      }
    }
    uint32_t changed = 0;
    ISTHMUS_UNROLL
    for (int b = 0; b < 4; ++b) {
      const uint32_t keys_of_block = word >> (8 * b) & 0xff;
      if (keys_of_block != 0) {
        const uint32_t row[3] = {rows_of_word[b].value[0], rows_of_word[b].value[1], rows_of_word[b].value[2]};
        changed |= change(4 * w + b, keys_of_block, row) << (8 * b);
      }
    }
    if (changed != word) {
      keys[w] = changed;
    }
  }
};

// Memory for degrees: of the group, behind its first `offset` bytes, or of the scratch memory, for the `place`-th of
// the slabs that are peeled at once.
template <bool kTablesInShared, typename Group>
ISTHMUS_DEVICE uint32_t* table_of(const Group& group, const TagcShape& shape, const SlabScratch& scratch, int64_t place,
                                  int64_t offset) {
  if constexpr (kTablesInShared) {
    return &group.template shared<uint32_t>() + offset / 4;
  } else {
    return scratch.tables + place * table_words(shape);
  }
}

struct PeelOutcome {
  int64_t rounds;  // in which something peeled
  bool left;       // something may be
};

// Peels in rounds, at most `max_rounds`: all keys that are alone in a cell at the beginning of a round leave together.
// recover(block, peeled, single0, single1, rows) takes values out of the sketch. Ends with a barrier.
template <bool kTablesInShared, typename Group, typename Recover>
ISTHMUS_DEVICE PeelOutcome peel_slab(Group& group, const Slab<kTablesInShared>& slab, int64_t max_rounds,
                                     Recover recover) {
  PeelOutcome outcome = {0, true};
  bool progress = true;
  while (progress && outcome.left && outcome.rounds < max_rounds) {
    slab.degrees.clear_all(group);
    group.sync();
    slab.change_keys(group, [&](int64_t, uint32_t keys, const uint32_t* row) {
      for (int i = 0; i < 3; ++i) {
        slab.degrees.add(group, row[i], keys);
      }
      return keys;
    });
    group.sync();
    bool peeled_some = false;
    bool left_some = false;
    slab.change_keys(group, [&](int64_t block, uint32_t keys, const uint32_t* row) {
      const uint32_t single0 = slab.degrees.single(row[0]);
      const uint32_t single1 = slab.degrees.single(row[1]);
      const uint32_t peeled = keys & (single0 | single1 | slab.degrees.single(row[2]));
      if (peeled != 0) {
        recover(block, peeled, single0, single1, row);
        peeled_some = true;
      }
      left_some |= peeled != keys;
      return keys & ~peeled;
    });
    progress = group.any(peeled_some);
    outcome.left = group.any(left_some);
    outcome.rounds += progress ? 1 : 0;
  }
  return outcome;
}

// Peels all keys of the index without values. What is left stays in the slabs' scratch memory.
template <bool kTablesInShared>
struct PeelIndex {
  static constexpr int kThreads = 1024;
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

// Where keys were left, lets in some that peel: each that has a cell which none before it took, beginning at a block
// that moves on from step to step. Takes out of the index what is held back.
template <bool kTablesInShared>
struct HoldBack {
  static constexpr int kThreads = 512;
  static constexpr int64_t kWindow = kThreads;  // candidates that are decided on at once
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
      // The index's bytes of this slab, of one block after the other.
      uint8_t* index = job.packet + job.layout.index + number;
      const int64_t stride = num_slabs(job.shape);
      slab.change_keys(group, [&](int64_t block, uint32_t keys, const uint32_t*) {
        index[block * stride] &= static_cast<uint8_t>(~keys);
        return keys;
      });
      admit(group, slab, index, candidates);
      slab.change_keys(group,
                       [&](int64_t block, uint32_t keys, const uint32_t*) { return keys & index[block * stride]; });
      peel_slab(group, slab, job.max_rounds - job.state->rounds, [](auto...) {});
      slab.change_keys(group, [&](int64_t block, uint32_t keys, const uint32_t*) {
        index[block * stride] &= static_cast<uint8_t>(~keys);
        return keys;
      });
      group.sync();
    });
  }

 private:
  // As tagc_first_block() on the host.
  ISTHMUS_DEVICE int64_t first_block() const {
    constexpr uint64_t kStride = 0x9e3779b9;
    const uint64_t place = (job.context->step * kStride) & 0xffffffff;
    return static_cast<int64_t>(place * static_cast<uint64_t>(job.shape.num_blocks) >> 32);
  }

  // visit(block, keys) for this thread's run of blocks: all threads' runs are all blocks, in order.
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

  // Adds to the index those of the slab's keys that are let in. Keys come one after the other, but for eight columns at
  // once: one thread decides, the others fetch. Begins and ends with a barrier.
  template <typename Group>
  ISTHMUS_DEVICE void admit(Group& group, const Slab<kTablesInShared>& slab, uint8_t* index,
                            Candidate* candidates) const {
    slab.degrees.clear_all(group);
    group.sync();
    const int64_t first = first_block();
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

  // Leaves of the candidate's keys those that have a cell which no key before them took, and takes all their cells.
  template <typename Group>
  static ISTHMUS_DEVICE void admit_one(Group& group, const Degrees& taken, Candidate& candidate) {
    const uint32_t* row = candidate.row;
    candidate.keys &= ~(taken.some(row[0]) & taken.some(row[1]) & taken.some(row[2]));
    for (int i = 0; i < 3; ++i) {
      taken.add(group, row[i], candidate.keys);
    }
  }
};

// The largest magnitude of each block that is sent: what scales the block's values. One thread a word of the index.
struct FindPeaks {
  static constexpr int kThreads = kPassThreads;
  static constexpr int64_t kMaxSharedBytes = 0;

  TagcEncodeJob job;

  template <typename Group>
  ISTHMUS_DEVICE void operator()(Group& group) const {
    const Sectors sectors = sectors_of_residual(job);
    for_each_index_word(group, job, [&](int64_t word, uint32_t marks) {
      uint32_t peak = 0;
      for_each_marked_byte(sectors, word, marks, [&](int, uint32_t marks_of_byte, const Eight& eight) {
        ISTHMUS_UNROLL
        for (int i = 0; i < 8; ++i) {
          const uint32_t bits = (marks_of_byte >> i & 1) != 0 ? magnitude(eight.value[i]) : 0;
          peak = bits > peak ? bits : peak;
        }
      });
      if (peak != 0) {
        group.fetch_max(job.peaks[block_of_word(job.shape, word)], peak);
      }
    });
  }
};

// Moves the values that the index marks from residual to the sketch; what their rounding loses stays. A sketch that is
// larger than the second-level cache is filled in stripes of columns, one after the other: each cell is met three times
// a value, in rows far apart.
template <bool kShortRows, typename Cells>
struct InsertValues {
  static constexpr int kThreads = kPassThreads;
  static constexpr int64_t kMaxSharedBytes = 0;
  static constexpr int64_t kStripeBytes =
      int64_t{24} * 1024 * 1024;  // of the sketch; fits the caches of sm_80 and later
  using Cell = typename Cells::Cell;

  TagcEncodeJob job;
  int64_t stripe_words;  // of each block's words in the index: a power of two

  // The most, for which a stripe of the sketch has no more than `bytes`; at least one.
  static int64_t words_of_stripe(const TagcShape& shape, int64_t bytes) {
    int64_t words = shape.block_elements / 32;
    while (words > 1 && static_cast<int64_t>(sizeof(Cell)) * 32 * words * shape.num_rows > bytes) {
      words /= 2;
    }
    return words;
  }

  template <typename Group>
  ISTHMUS_DEVICE void operator()(Group& group) const {
    uint64_t kept = 0;
    for (int64_t first = 0; first < job.shape.block_elements / 32; first += stripe_words) {
      for_each_of_all(group, job.shape.num_blocks * stripe_words, [&](int64_t i) {
        const int64_t block = i >> lowest_bit(stripe_words);
        kept += insert_word(group, block, first + (i & (stripe_words - 1)));
      });
    }
    kept = group.sum(kept);
    if (group.thread() == 0) {
      group.fetch_add(job.counts->kept_elements, kept);
    }
  }

 private:
  // Returns how many values it moved.
  template <typename Group>
  ISTHMUS_DEVICE uint32_t insert_word(Group& group, int64_t block, int64_t word_of_block) const {
    const int64_t word = block * (job.shape.block_elements / 32) + word_of_block;
    uint32_t scale = 0;
    if constexpr (Cells::kIsScaled) {
      scale = scale_of(job.peaks[block]);
      if (word_of_block == 0) {
        job.packet[job.layout.scales + block] = static_cast<uint8_t>(scale);
      }
    }
    const uint32_t marks = reinterpret_cast<const uint32_t*>(job.packet + job.layout.index)[word];
    if (marks == 0 || is_flagged(reinterpret_cast<const uint64_t*>(job.packet + job.layout.flags), block)) {
      return 0;
    }
    const auto rows = RowTable<kShortRows>(job.rows)[block];
    const Sectors sectors = sectors_of_residual(job);
    for_each_marked_byte(sectors, word, marks, [&](int byte, uint32_t marks_of_byte, Eight eight) {
      ISTHMUS_UNROLL
      for (int i = 0; i < 8; ++i) {
        if ((marks_of_byte >> i & 1) != 0) {
          const Cell pattern = Cells::encode(eight.value[i], scale);
          for (int r = 0; r < 3; ++r) {
            insert(group, int64_t{rows.value[r]} * job.shape.block_elements + 32 * word_of_block + 8 * byte + i,
                   pattern);
          }
          eight.value[i] -= Cells::decode(pattern, scale);
        }
      }
      sectors.store(32 * word + 8 * byte, eight);
    });
    return count_bits(marks);
  }

  // Cells of less than 32 bits are neighbours in a word.
  template <typename Group>
  ISTHMUS_DEVICE void insert(Group& group, int64_t cell, Cell pattern) const {
    constexpr int64_t kCellsOfWord = 4 / sizeof(Cell);
    auto* words = reinterpret_cast<uint32_t*>(job.packet + job.layout.sketch);
    const int shift = static_cast<int>(8 * sizeof(Cell)) * static_cast<int>(cell % kCellsOfWord);
    group.apply_xor(words[cell / kCellsOfWord], uint32_t{pattern} << shift);
  }
};

// Peels all packets with values, one after the other in each slab: out += value; or each packet to its place, all at
// once. Nothing if one was refused. The last group reports.
template <bool kTablesInShared, typename Cells>
struct PeelPackets {
  static constexpr int kThreads = Cells::kIsScaled ? 640 : 768;  // 96 or 80 registers a thread
  static constexpr int64_t kMaxSharedBytes = kTablesInShared ? kMaxSharedTableBytes : 0;

  using Cell = typename Cells::Cell;

  TagcDecodeJob job;

  template <typename Group>
  ISTHMUS_DEVICE void operator()(Group& group) const {
    if (job.state->refused == 0) {
      const int64_t slabs = num_slabs(job.shape);
      for_each_by_group(group, job.to_places ? job.num_packets * slabs : slabs, [&](int64_t turn) {
        const int64_t first = job.to_places ? turn / slabs : 0;
        const int64_t end = job.to_places ? first + 1 : job.num_packets;
        for (int64_t packet = first; packet < end; ++packet) {
          peel_packet(group, packet, turn % slabs, turn);
        }
      });
    }
    if (group.is_last(job.state->arrived)) {
      finish_fault(group, job);
    }
  }

 private:
  // place: of the scratch memory for what is peeled at once.
  template <typename Group>
  ISTHMUS_DEVICE void peel_packet(Group& group, int64_t packet, int64_t number, int64_t place) const {
    const TagcShape& shape = job.shape;
    const Slab<kTablesInShared> slab(shape, job.slabs, job.rows, packet * num_slabs(shape) + number,
                                     table_of<kTablesInShared>(group, shape, job.slabs, place, 0));
    const uint8_t* bytes = job.packets + packet * job.packet_bytes;
    float* out =
        static_cast<float*>(job.out.data) + (job.to_places ? packet * shape.num_elements : 0) + kSlabColumns * number;
    uint32_t* cells = job.cells + place * kSlabColumns * shape.num_rows;
    const uint8_t* scales = bytes + job.layout.scales;
    add_nan(group, bytes, number, out);
    copy_cells(group, reinterpret_cast<const Cell*>(bytes + job.layout.sketch) + kSlabColumns * number, cells);
    const PeelOutcome outcome =
        peel_slab(group, slab, job.max_rounds,
                  [&](int64_t block, uint32_t peeled, uint32_t single0, uint32_t single1, const uint32_t* row) {
                    const uint32_t scale = Cells::kIsScaled ? scales[block] : 0;
                    recover(group, peeled, single0, single1, row, cells, scale, out + block * shape.block_elements);
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
  ISTHMUS_DEVICE void copy_cells(const Group& group, const Cell* sketch, uint32_t* cells) const {
    using FourCells = SeveralOf<Cell, 4>;
    using FourWords = SeveralOf<uint32_t, 4>;
    for_each_of_group(group, 2 * job.shape.num_rows, [&](int64_t i) {
      const auto four = *reinterpret_cast<const FourCells*>(sketch + i / 2 * job.shape.block_elements + 4 * (i % 2));
      reinterpret_cast<FourWords*>(cells)[i] = {four.value[0], four.value[1], four.value[2], four.value[3]};
    });
  }

  // Takes the values of a block's `peeled` keys out of the sketch, from the first cell that each has alone, and adds
  // them to `out`. The loads of four are in flight together.
  template <typename Group>
  static ISTHMUS_DEVICE void recover(Group& group, uint32_t peeled, uint32_t single0, uint32_t single1,
                                     const uint32_t* row, uint32_t* cells, uint32_t scale, float* out) {
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
          out[c] = sum[i] + Cells::decode(static_cast<Cell>(value[i]), scale);
        }
      }
    }
  }

  // The elements that are marked in flagged blocks.
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
