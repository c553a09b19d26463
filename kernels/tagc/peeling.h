// How codec `tagc` peels on many groups. Columns of the sketch are independent: a group takes a slab of eight and peels
// it alone, all rounds, with its degrees in shared memory. So rounds need neither barriers between groups nor launches.
#pragma once

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

// One slab while it is peeled. kTablesInShared: its degrees fit into the group's shared memory.
template <bool kTablesInShared>
struct Slab {
  uint32_t* keys;  // slab_words: a byte a block, those that are left
  int64_t num_words;
  RowTable<kTablesInShared> rows;
  Degrees degrees;

  // table: memory for the degrees.
  ISTHMUS_DEVICE Slab(const TagcShape& shape, const SlabScratch& scratch, uint32_t* rows_of_blocks, int64_t number,
                      uint32_t* table)
      : keys(scratch.keys + number * slab_words(shape)),
        num_words(slab_words(shape)),
        rows(rows_of_blocks),
        degrees(table, table_words(shape)) {}

  // keys of each block that has some = change(block, keys, rows). One thread a word, the same each time. Four words are
  // fetched at once: in later rounds most are empty.
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

// Memory for degrees: the group's shared memory behind its first `offset` bytes, or scratch memory for the `place`-th
// slab of those that are peeled at once.
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
  int64_t rounds;  // rounds in which something peeled
  bool left;       // keys may be left
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

}  // namespace isthmus::kernels::ISTHMUS_KERNEL_NAMESPACE
