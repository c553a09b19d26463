// The index of `tagc` as threads read it: in words, whose marked elements are fetched 32 bytes at a time, and in slabs
// of eight columns.
#pragma once

#include <type_traits>

#include "kernels/block/passes.h"
#include "kernels/elementwise/shard_values.h"
#include "kernels/tagc/block.h"
#include "kernels/tagc/job.h"

namespace isthmus::kernels::ISTHMUS_KERNEL_NAMESPACE {

// A shift instead of a division, because blocks are powers of two.
ISTHMUS_DEVICE int64_t block_of_word(const TagcShape& shape, int64_t word) {
  return word >> (lowest_bit(shape.block_elements) - 5);
}

// The rows of all blocks, and behind them the signs, as in BlockRows. They are read more often than anything else, so
// they have 16 bits where they fit, which they do if a slab's degrees fit into shared memory.
template <bool kShort>
class RowTable {
 public:
  using Stored = SeveralOf<std::conditional_t<kShort, uint16_t, uint32_t>, 4>;

  explicit ISTHMUS_DEVICE RowTable(uint32_t* memory) : blocks_(reinterpret_cast<Stored*>(memory)) {}

  ISTHMUS_DEVICE const Stored& operator[](int64_t block) const { return blocks_[block]; }
  ISTHMUS_DEVICE void set(int64_t block, const BlockRows& drawn) const {
    using Number = std::conditional_t<kShort, uint16_t, uint32_t>;
    blocks_[block] = {static_cast<Number>(drawn.row[0]), static_cast<Number>(drawn.row[1]),
                      static_cast<Number>(drawn.row[2]), static_cast<Number>(drawn.negative)};
  }

 private:
  Stored* blocks_;
};

// One thread calls it.
ISTHMUS_DEVICE void draw_rows(const TagcShape& shape, const DeviceContext& context, int64_t block, uint32_t* rows) {
  const BlockRows drawn = hash_block(seed_of_step(context.unit_hash, context.step), block, shape.num_rows);
  if (tables_fit_shared(shape)) {
    RowTable<true>(rows).set(block, drawn);
  } else {
    RowTable<false>(rows).set(block, drawn);
  }
}

// The elements of one byte of the index: a sector of memory where their address allows.
using Eight = SeveralOf<float, 8>;

// Calls visit(byte, marks, eight) for each byte of an index word that marks something, with its elements of the
// residual, zeros after the last. All are fetched before the first visit.
template <typename Visit>
ISTHMUS_DEVICE void for_each_marked_byte(const TagcEncodeJob& job, int64_t word, uint32_t marks, Visit visit) {
  Eight eight[4] = {};
  ISTHMUS_UNROLL
  for (int byte = 0; byte < 4; ++byte) {
    if ((marks >> (8 * byte) & 0xff) != 0) {
      const int64_t first = 32 * word + 8 * byte;
      eight[byte] = load_neighbours<8>(job.residual + first, job.shape.num_elements - first);
    }
  }
  ISTHMUS_UNROLL
  for (int byte = 0; byte < 4; ++byte) {
    const uint32_t marks_of_byte = marks >> (8 * byte) & 0xff;
    if (marks_of_byte != 0) {
      visit(byte, marks_of_byte, eight[byte]);
    }
  }
}

// Calls visit(word, marks) for each word of the index in a block without a flag. One thread takes a word.
template <typename Group, typename Visit>
ISTHMUS_DEVICE void for_each_index_word(const Group& group, const TagcEncodeJob& job, Visit visit) {
  for_each_of_all(group, job.shape.num_blocks * (job.shape.block_elements / 32), [&](int64_t word) {
    if (!is_flagged(job.flags(), block_of_word(job.shape, word))) {
      visit(word, job.index()[word]);
    }
  });
}

// Turns the index, in which a block's bytes are neighbours, into the slabs' keys, in which a slab's bytes are. The
// shared memory of a group has one tile.
struct SpreadTile {
  static constexpr int64_t kPaddingBytes = 4;  // so that the bytes of a word do not all lie in one bank
  static constexpr int64_t kMaxSharedBytes = kMaxBlockElements / 8 * (32 + kPaddingBytes);

  static ISTHMUS_DEVICE int64_t shared_bytes(const TagcShape& shape) {
    return num_slabs(shape) * (tile_blocks(shape) + kPaddingBytes);
  }

  // keys: those of all slabs. keys_of(word): what the slabs get of an index word; called once for each word, in blocks
  // that exist. All threads of a group call it. It is a barrier.
  template <typename Group, typename KeysOf>
  static ISTHMUS_DEVICE void run(Group& group, const TagcShape& shape, int64_t tile, uint32_t* keys, KeysOf keys_of) {
    auto* bytes = &group.template shared<uint8_t>();
    const int64_t blocks = tile_blocks(shape);
    const int64_t pitch = blocks + kPaddingBytes;
    const int64_t words = shape.block_elements / 32;
    for_each_of_group(group, blocks * words, [&](int64_t i) {
      const int64_t block = block_of_word(shape, i);
      const int64_t word = i & (words - 1);
      const uint32_t marks = tile * blocks + block < shape.num_blocks ? keys_of(tile * blocks * words + i) : 0;
      for (int byte = 0; byte < 4; ++byte) {
        bytes[(4 * word + byte) * pitch + block] = static_cast<uint8_t>(marks >> (8 * byte));
      }
    });
    group.sync();
    const int64_t words_of_slab = blocks / 4;
    for_each_of_group(group, num_slabs(shape) * words_of_slab, [&](int64_t i) {
      const int64_t slab = i >> lowest_bit(words_of_slab);
      const int64_t word = i & (words_of_slab - 1);
      keys[slab * slab_words(shape) + tile * words_of_slab + word] =
          *reinterpret_cast<const uint32_t*>(bytes + slab * pitch + 4 * word);
    });
    group.sync();
  }
};

}  // namespace isthmus::kernels::ISTHMUS_KERNEL_NAMESPACE
