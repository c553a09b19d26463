// The CPU executor of codec `tagc`. Compiled once for each instruction set.
#include "kernels/tagc/block.h"
#include "kernels/tagc/select.h"

namespace isthmus::kernels::ISTHMUS_KERNEL_NAMESPACE {

// The three cells of one column that belong to one block.
template <typename Cell>
struct BlockCells {
  using Value = typename Cell::Type;

  Value* row[3];
  uint32_t negative;

  BlockCells(const BlockRows& rows, int64_t columns, Value* cells)
      : row{cells + rows.row[0] * columns, cells + rows.row[1] * columns, cells + rows.row[2] * columns},
        negative(rows.negative) {}

  bool is_negative(int i) const { return (negative >> i & 1) != 0; }
  Value value(int i, int64_t column) const { return Cell::value(row[i][column], is_negative(i)); }
  void insert(int64_t column, Value value) const {
    for (int i = 0; i < 3; ++i) {
      Cell::insert(row[i][column], value, is_negative(i));
    }
  }
  void remove(int64_t column, Value value) const {  // by adding -value, or the same pattern once more
    for (int i = 0; i < 3; ++i) {
      Cell::insert(row[i][column], value, !is_negative(i));
    }
  }
};

template <typename Visit>
inline void for_each_key(const uint64_t* keys, int64_t words, Visit visit) {
  for (int64_t w = 0; w < words; ++w) {
    for_each_bit(keys[w], 64 * w, visit);
  }
}

inline void hash_blocks(const TagcShape& shape, uint64_t seed, BlockRows* rows) {
  for (int64_t block = 0; block < shape.num_blocks; ++block) {
    rows[block] = hash_block(seed, block, shape.num_rows);
  }
}

inline int64_t count_bits(const uint64_t* words, int64_t num_words) {
  int64_t count = 0;
  for (int64_t w = 0; w < num_words; ++w) {
    count += __builtin_popcountll(words[w]);
  }
  return count;
}

// Lists the blocks that have keys left.
inline int64_t find_active(const TagcShape& shape, const PeelScratch& scratch) {
  int64_t num_active = 0;
  for (int64_t block = 0; block < shape.num_blocks; ++block) {
    uint64_t any = 0;
    for (int64_t w = 0; w < shape.block_words(); ++w) {
      any |= scratch.remaining[block * shape.block_words() + w];
    }
    scratch.active[num_active] = static_cast<uint32_t>(block);
    num_active += any != 0;
  }
  return num_active;
}

// Adds one block's keys to the cells of a row: `once` has those hit by one key or more, `twice` by two or more.
inline void count_keys(const uint64_t* __restrict keys, int64_t words, uint64_t* __restrict once,
                       uint64_t* __restrict twice) {
  for (int64_t w = 0; w < words; ++w) {
    twice[w] |= once[w] & keys[w];
    once[w] |= keys[w];
  }
}

// Leaves in scratch.once the cells that hold exactly one of the remaining keys.
inline void find_singles(const TagcShape& shape, const BlockRows* rows, const PeelScratch& scratch,
                         int64_t num_active) {
  const int64_t words = shape.block_words();
  const int64_t row_words = shape.num_rows * words;
  __builtin_memset(scratch.once, 0, row_words * sizeof(uint64_t));
  __builtin_memset(scratch.twice, 0, row_words * sizeof(uint64_t));
  for (int64_t a = 0; a < num_active; ++a) {
    const int64_t block = scratch.active[a];
    for (const uint32_t row : rows[block].row) {
      count_keys(scratch.remaining + block * words, words, scratch.once + row * words, scratch.twice + row * words);
    }
  }
  for (int64_t w = 0; w < row_words; ++w) {
    scratch.once[w] &= ~scratch.twice[w];
  }
}

struct BlockStatus {
  bool peeled;  // some keys peel in this round
  bool left;    // some do not
};

// Moves keys that are alone in one of their three cells from `keys` to `peeled`.
inline BlockStatus take_single_keys(const uint64_t* __restrict single0, const uint64_t* __restrict single1,
                                    const uint64_t* __restrict single2, int64_t words, uint64_t* __restrict keys,
                                    uint64_t* __restrict peeled) {
  uint64_t any_peeled = 0;
  uint64_t any_left = 0;
  for (int64_t w = 0; w < words; ++w) {
    const uint64_t single = single0[w] | single1[w] | single2[w];
    peeled[w] = keys[w] & single;
    keys[w] &= ~single;
    any_peeled |= peeled[w];
    any_left |= keys[w];
  }
  return {any_peeled != 0, any_left != 0};
}

// Peels in rounds: all keys that are alone in a cell at the beginning of a round leave together, so the result does not
// depend on their order. recover(block, peeled, single0, single1) takes their values out of the sketch.
template <typename Recover>
PeelResult peel(const TagcShape& shape, const BlockRows* rows, int64_t max_rounds, const PeelScratch& scratch,
                Recover recover) {
  constexpr int64_t kMaxWords = kMaxBlockElements / 64;
  uint64_t peeled[kMaxWords];
  const int64_t words = shape.block_words();
  const int64_t num_keys = count_bits(scratch.remaining, shape.index_words());
  int64_t num_active = find_active(shape, scratch);
  int64_t rounds = 0;
  for (bool progress = true; rounds < max_rounds && num_active > 0 && progress; rounds += progress) {
    find_singles(shape, rows, scratch, num_active);
    progress = false;
    int64_t still_active = 0;
    for (int64_t a = 0; a < num_active; ++a) {
      const uint32_t block = scratch.active[a];
      const uint32_t* row = rows[block].row;
      const uint64_t* single0 = scratch.once + row[0] * words;
      const uint64_t* single1 = scratch.once + row[1] * words;
      const uint64_t* single2 = scratch.once + row[2] * words;
      const BlockStatus status =
          take_single_keys(single0, single1, single2, words, scratch.remaining + block * words, peeled);
      if (status.peeled) {
        recover(block, peeled, single0, single1);
        progress = true;
      }
      scratch.active[still_active] = block;
      still_active += status.left;
    }
    num_active = still_active;
  }
  const int64_t left = count_bits(scratch.remaining, shape.index_words());
  return {num_keys - left, left, rounds};
}

// Removes the remaining keys without a cell that no earlier key took; the others take all their cells. The keys that
// stay peel, the last one first.
inline void admit_remaining(const TagcShape& shape, const BlockRows* rows, int64_t first_block,
                            const PeelScratch& scratch) {
  const int64_t words = shape.block_words();
  const int64_t num_active = find_active(shape, scratch);
  int64_t start = 0;
  while (start < num_active && scratch.active[start] < first_block) {
    ++start;
  }
  __builtin_memset(scratch.once, 0, shape.num_rows * words * sizeof(uint64_t));  // has the cells that are taken
  for (int64_t a = 0; a < num_active; ++a) {
    const int64_t block = scratch.active[start + a < num_active ? start + a : start + a - num_active];
    uint64_t* keys = scratch.remaining + block * words;
    uint64_t* taken[3];
    for (int i = 0; i < 3; ++i) {
      taken[i] = scratch.once + rows[block].row[i] * words;
    }
    for (int64_t w = 0; w < words; ++w) {
      keys[w] &= ~(taken[0][w] & taken[1][w] & taken[2][w]);
      for (uint64_t* cells : taken) {
        cells[w] |= keys[w];
      }
    }
  }
}

inline PeelResult hold_back(const TagcShape& shape, const BlockRows* rows, int64_t max_rounds, int64_t first_block,
                            uint64_t* index, PeelScratch scratch) {
  const auto leave_values = [](auto...) {};
  const PeelResult all = peel(shape, rows, max_rounds, scratch, leave_values);
  if (all.left_elements == 0) {
    return all;
  }
  const auto change_index = [&](auto change) {
    for (int64_t w = 0; w < shape.index_words(); ++w) {
      index[w] = change(index[w], scratch.remaining[w]);
    }
  };
  change_index([](uint64_t word, uint64_t left) { return word & ~left; });
  admit_remaining(shape, rows, first_block, scratch);
  change_index([](uint64_t word, uint64_t admitted) { return word | admitted; });
  const PeelResult admitted = peel(shape, rows, max_rounds - all.rounds, scratch, leave_values);
  change_index([](uint64_t word, uint64_t left) { return word & ~left; });
  return {all.peeled_elements + admitted.peeled_elements, all.left_elements - admitted.peeled_elements,
          all.rounds + admitted.rounds};
}

// Takes the values of a block's `peeled` keys out of the sketch, each from the first cell that it has alone, and calls
// emit(column, value).
template <typename Cell, typename Emit>
inline void recover_values(const BlockCells<Cell>& cells, const uint64_t* peeled, int64_t words,
                           const uint64_t* single0, const uint64_t* single1, Emit emit) {
  for (int64_t w = 0; w < words; ++w) {
    const auto recover_from = [&](int i, uint64_t keys) {
      for_each_bit(keys, 64 * w, [&](int64_t column) {
        const auto value = cells.value(i, column);
        cells.remove(column, value);
        emit(column, value);
      });
    };
    recover_from(0, peeled[w] & single0[w]);
    recover_from(1, peeled[w] & single1[w] & ~single0[w]);
    recover_from(2, peeled[w] & ~(single0[w] | single1[w]));
  }
}

// Calls emit(element, float_of_cell(cell)) for each key that peels, in the order in which rounds find them.
template <typename Cell, typename FloatOfCell, typename Emit>
PeelResult peel_values(const TagcShape& shape, const BlockRows* rows, int64_t max_rounds, const PeelScratch& scratch,
                       typename Cell::Type* cells, FloatOfCell float_of_cell, Emit emit) {
  return peel(shape, rows, max_rounds, scratch,
              [&](int64_t block, const uint64_t* peeled, const uint64_t* single0, const uint64_t* single1) {
                const BlockCells<Cell> block_cells(rows[block], shape.block_elements, cells);
                const int64_t first = block * shape.block_elements;
                recover_values(block_cells, peeled, shape.block_words(), single0, single1,
                               [&](int64_t column, auto value) { emit(first + column, float_of_cell(value)); });
              });
}

inline PeelResult peel_xor(const TagcShape& shape, const BlockRows* rows, int64_t max_rounds, PeelScratch scratch,
                           uint32_t* cells, float* out) {
  return peel_values<XorCell>(
      shape, rows, max_rounds, scratch, cells, [](uint32_t bits) { return float_of(bits); },
      [=](int64_t element, float value) { out[element] += value; });
}

inline PeelResult peel_sum(const TagcShape& shape, const BlockRows* rows, int64_t max_rounds, PeelScratch scratch,
                           float* cells, float* out) {
  return peel_values<SumCell>(
      shape, rows, max_rounds, scratch, cells, [](float value) { return value; },
      [=](int64_t element, float value) { out[element] = value == value ? value : float_of(kNanBits); });
}

// Calls visit(block, block_cells, column, element) for each key of the index, ascending.
template <typename Cell, typename Visit>
void for_each_cell(const TagcShape& shape, const BlockRows* rows, const uint64_t* index, typename Cell::Type* cells,
                   Visit visit) {
  for (int64_t block = 0; block < shape.num_blocks; ++block) {
    const BlockCells<Cell> block_cells(rows[block], shape.block_elements, cells);
    const int64_t first = block * shape.block_elements;
    for_each_key(index + block * shape.block_words(), shape.block_words(),
                 [&](int64_t column) { visit(block, block_cells, column, first + column); });
  }
}

inline void insert_xor(const TagcShape& shape, const BlockRows* rows, const uint64_t* flags, const uint64_t* index,
                       float* residual, uint32_t* cells) {
  for_each_cell<XorCell>(shape, rows, index, cells,
                         [=](int64_t block, const BlockCells<XorCell>& block_cells, int64_t column, int64_t element) {
                           if (!is_flagged(flags, block)) {
                             block_cells.insert(column, bits_of(residual[element]));
                             residual[element] = 0;
                           }
                         });
}

inline void insert_sum(const TagcShape& shape, const BlockRows* rows, const uint64_t* flags, const uint64_t* index,
                       float* residual, float* cells) {
  for_each_cell<SumCell>(shape, rows, index, cells,
                         [=](int64_t block, const BlockCells<SumCell>& block_cells, int64_t column, int64_t element) {
                           if (is_flagged(flags, block)) {
                             for (float* row : block_cells.row) {
                               row[column] = float_of(kNanBits);
                             }
                           } else {
                             block_cells.insert(column, residual[element]);
                             residual[element] = 0;
                           }
                         });
}

inline void estimate(const TagcShape& shape, const BlockRows* rows, const uint64_t* remaining, const float* cells,
                     float* out) {
  // Only reads cells, but BlockCells has no constant form.
  for_each_cell<SumCell>(shape, rows, remaining, const_cast<float*>(cells),
                         [=](int64_t, const BlockCells<SumCell>& block_cells, int64_t column, int64_t element) {
                           out[element] = median_or_nan(block_cells.value(0, column), block_cells.value(1, column),
                                                        block_cells.value(2, column));
                         });
}

inline uint32_t find_faults_alone(const TagcShape& shape, const TagcLayout& layout, const uint8_t* packet) {
  SoleThread group;
  return find_faults(group, shape, layout, packet);
}

constexpr TagcKernels kKernels = {
    .hash_blocks = hash_blocks,
    .sample_bound = sample_bound,
    .select = select,
    .hold_back = hold_back,
    .insert_xor = insert_xor,
    .insert_sum = insert_sum,
    .peel_xor = peel_xor,
    .peel_sum = peel_sum,
    .find_faults = find_faults_alone,
    .estimate = estimate,
};

}  // namespace isthmus::kernels::ISTHMUS_KERNEL_NAMESPACE

namespace isthmus::kernels {

const TagcKernels& tagc_kernels_of(ISTHMUS_KERNEL_NAMESPACE::Instructions /*set*/) {
  return ISTHMUS_KERNEL_NAMESPACE::kKernels;
}

}  // namespace isthmus::kernels
