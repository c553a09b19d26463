// The passes of `tagc` in a single tier, beside those that choose elements: cells are float32 sums, so each is updated
// by one thread, in ascending order of blocks, as on the CPU.
#pragma once

#include "kernels/block/passes.h"
#include "kernels/tagc/job.h"
#include "kernels/tagc/peeling.h"
#include "kernels/tagc/slab.h"

namespace isthmus::kernels::ISTHMUS_KERNEL_NAMESPACE {

// One key of a slab, and one of its cells.
struct KeyInCell {
  int64_t block;
  int column;
  uint32_t row;
  bool is_negative;
};

// Calls visit(KeyInCell) for each key of a slab and each of its three cells. One thread visits all keys of a cell,
// blocks ascending. keys_of(w): the keys in word w of the slab's.
template <typename Group, typename Rows, typename KeysOf, typename Visit>
ISTHMUS_DEVICE void for_each_key_in_cells(const Group& group, const Rows& rows, int64_t num_words, KeysOf keys_of,
                                          Visit visit) {
  constexpr int kWordsAtOnce = 8;  // a divisor of a slab's
  // Groups of whole rows of cells: each thread's cells lie in one column.
  const uint32_t columns =
      group.size() % kSlabColumns == 0 ? 0x01010101U << (group.thread() % kSlabColumns) : 0xffffffff;
  for (int64_t first = 0; first < num_words; first += kWordsAtOnce) {
    uint32_t words[kWordsAtOnce];
    ISTHMUS_UNROLL
    for (int i = 0; i < kWordsAtOnce; ++i) {
      words[i] = keys_of(first + i) & columns;
    }
    ISTHMUS_UNROLL
    for (int i = 0; i < kWordsAtOnce; ++i) {
      for_each_bit(words[i], 0, [&](int64_t bit) {
        const int64_t block = 4 * (first + i) + bit / kSlabColumns;
        const auto column = static_cast<int>(bit % kSlabColumns);
        const auto stored = rows[block];
        for (int r = 0; r < 3; ++r) {
          const uint32_t row = stored.value[r];
          if ((kSlabColumns * row + column) % group.size() == group.thread()) {
            visit({block, column, row, (stored.value[3] >> r & 1) != 0});
          }
        }
      });
    }
  }
}

// Adds the values of chosen elements to the sketch, which is clear; the residual becomes zero there. Marked elements of
// flagged blocks enter as NaN. Writes the index as it is merged.
template <bool kShortRows>
struct InsertSums {
  TagcFlatEncodeJob job;

  template <typename Group>
  ISTHMUS_DEVICE void operator()(Group& group) const {
    write_index(group);
    for_each_by_group(group, num_slabs(job.shape), [&](int64_t number) {
      const uint32_t* keys = job.slabs.keys + number * slab_words(job.shape);
      float* cells = job.cells + kSlabColumns * number;
      float* residual = job.residual + kSlabColumns * number;
      const int64_t columns = job.shape.block_elements;
      for_each_key_in_cells(
          group, RowTable<kShortRows>(job.rows), slab_words(job.shape),
          [&](int64_t w) { return marks_of(number, keys, w); },
          [&](const KeyInCell& key) {
            const float value =
                is_flagged(job.flags(), key.block) ? float_of(kNanBits) : residual[key.block * columns + key.column];
            SumCell::insert(cells[key.row * columns + key.column], value, key.is_negative);
          });
      group.sync();
      for_each_of_group(group, slab_words(job.shape), [&](int64_t w) {
        for_each_bit(keys[w], 0,
                     [&](int64_t bit) { residual[(4 * w + bit / kSlabColumns) * columns + bit % kSlabColumns] = 0; });
      });
    });
  }

 private:
  template <typename Group>
  ISTHMUS_DEVICE void write_index(Group& group) const {
    uint64_t kept = 0;
    for_each_of_all(group, 2 * job.shape.index_words(), [&](int64_t w) {
      const uint32_t marks = job.index()[w];
      kept += is_flagged(job.flags(), block_of_word(job.shape, w)) ? 0 : count_bits(marks);
      job.wire_index[w] = marks;
    });
    kept = group.sum(kept);
    if (group.thread() == 0) {
      group.fetch_add(job.counts->kept_elements, kept);
    }
  }

  // The chosen elements of four blocks, and the marked ones of those that are flagged.
  ISTHMUS_DEVICE uint32_t marks_of(int64_t number, const uint32_t* keys, int64_t w) const {
    const bool exists = 4 * w < job.shape.num_blocks;
    const uint64_t flagged = exists ? job.flags()[w / 16] >> (4 * (w % 16)) & 0xf : 0;
    uint32_t marks = keys[w];
    for_each_bit(flagged, 0, [&](int64_t b) {
      const int64_t byte = (4 * w + b) * num_slabs(job.shape) + number;
      marks |= uint32_t{job.packet[job.layout.index + byte]} << (8 * b);
    });
    return marks;
  }
};

struct MergeIndex {
  TagcFlatMergeJob job;

  template <typename Group>
  ISTHMUS_DEVICE void operator()(Group& group) const {
    for_each_of_all(group, job.num_words, [&](int64_t w) { job.index[w] |= job.arrived[w]; });
  }
};

// Draws the blocks' rows, and writes the merged index as the slabs' keys.
struct OpenIndex {
  static constexpr int64_t kMaxSharedBytes = SpreadTile::kMaxSharedBytes;

  TagcFlatDecodeJob job;

  template <typename Group>
  ISTHMUS_DEVICE void operator()(Group& group) const {
    for_each_of_all(group, job.shape.num_blocks,
                    [&](int64_t block) { draw_rows(job.shape, job.context, block, job.rows); });
    for_each_by_group(group, num_tiles(job.shape), [&](int64_t tile) {
      SpreadTile::run(group, job.shape, tile, job.slabs.keys, [&](int64_t word) { return marks_of(word); });
    });
  }

 private:
  // 32 elements. Marks past the last, which only damage sets, are left out: they must not lead to writes there.
  ISTHMUS_DEVICE uint32_t marks_of(int64_t word) const {
    const int64_t elements = job.shape.num_elements - 32 * word;
    const uint32_t marks = job.wire_index[word];
    return elements >= 32 ? marks : elements <= 0 ? 0 : marks & ((1U << elements) - 1);
  }
};

// Peels the sums, and estimates what is left.
template <bool kTablesInShared>
struct PeelSums {
  static constexpr int kThreads = 512;
  static constexpr int64_t kMaxSharedBytes = kTablesInShared ? kMaxSharedTableBytes : 0;

  TagcFlatDecodeJob job;

  template <typename Group>
  ISTHMUS_DEVICE void operator()(Group& group) const {
    for_each_by_group(group, num_slabs(job.shape), [&](int64_t number) {
      const Slab<kTablesInShared> slab(job.shape, job.slabs, job.rows, number,
                                       table_of<kTablesInShared>(group, job.shape, job.slabs, number, 0));
      const SlabOfSums sums = {slab, job.keys_before + number * slab.num_words, job.cells + kSlabColumns * number,
                               job.out + kSlabColumns * number, job.shape.block_elements};
      peel(group, sums);
      estimate(group, sums);
    });
  }

 private:
  struct SlabOfSums {
    const Slab<kTablesInShared>& slab;
    uint32_t* keys_before;
    float* cells;
    float* out;
    int64_t columns;

    ISTHMUS_DEVICE float value(int64_t column, uint32_t row, bool is_negative) const {
      return SumCell::value(cells[row * columns + column], is_negative);
    }
    ISTHMUS_DEVICE bool is_negative(int64_t block, int r) const { return (slab.rows[block].value[3] >> r & 1) != 0; }
  };

  // A round reads values off while nobody changes cells. Then they leave their cells.
  template <typename Group>
  ISTHMUS_DEVICE void peel(Group& group, const SlabOfSums& sums) const {
    const Slab<kTablesInShared>& slab = sums.slab;
    const auto read_off = [&](int64_t block, uint32_t peeled, uint32_t single0, uint32_t single1, const uint32_t* row) {
      for_each_bit(peeled, 0, [&](int64_t column) {
        const bool alone0 = (single0 >> column & 1) != 0;
        const bool alone1 = (single1 >> column & 1) != 0;
        const uint32_t alone_in = alone0 ? row[0] : alone1 ? row[1] : row[2];
        const float value = sums.value(column, alone_in, sums.is_negative(block, alone0 ? 0 : alone1 ? 1 : 2));
        sums.out[block * sums.columns + column] = value == value ? value : float_of(kNanBits);
      });
    };
    bool goes_on = true;
    for (int64_t round = 0; goes_on && round < job.max_rounds; ++round) {
      for_each_of_group(group, slab.num_words, [&](int64_t w) { sums.keys_before[w] = slab.keys[w]; });
      const PeelOutcome outcome = peel_slab(group, slab, 1, read_off);
      goes_on = outcome.rounds == 1 && outcome.left;
      for_each_key_in_cells(
          group, slab.rows, slab.num_words, [&](int64_t w) { return sums.keys_before[w] ^ slab.keys[w]; },
          [&](const KeyInCell& key) {
            SumCell::insert(sums.cells[key.row * sums.columns + key.column],
                            sums.out[key.block * sums.columns + key.column], !key.is_negative);
          });
      group.sync();
    }
  }

  template <typename Group>
  ISTHMUS_DEVICE void estimate(Group& group, const SlabOfSums& sums) const {
    uint64_t estimated = 0;
    sums.slab.change_keys(group, [&](int64_t block, uint32_t keys, const uint32_t* row) {
      for_each_bit(keys, 0, [&](int64_t column) {
        float cell[3];
        for (int r = 0; r < 3; ++r) {
          cell[r] = sums.value(column, row[r], sums.is_negative(block, r));
        }
        sums.out[block * sums.columns + column] = median_or_nan(cell[0], cell[1], cell[2]);
        ++estimated;
      });
      return keys;
    });
    estimated = group.sum(estimated);
    if (group.thread() == 0 && estimated != 0) {
      group.fetch_add(job.counts->estimated_elements, estimated);
    }
  }
};

}  // namespace isthmus::kernels::ISTHMUS_KERNEL_NAMESPACE
