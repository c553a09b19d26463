// The last passes of an encoding of codec `tagc` on many groups: the values that the index marks move from the residual
// to the sketch.
#pragma once

#include "kernels/tagc/slab.h"

namespace isthmus::kernels::ISTHMUS_KERNEL_NAMESPACE {

// Moves the values that the index marks from the residual to the sketch, by XOR of their bits. A sketch larger than the
// second-level cache is filled in stripes of columns, one after another, because each value updates three cells in rows
// far apart.
template <bool kShortRows>
struct InsertValues {
  static constexpr int64_t kStripeBytes =
      int64_t{24} * 1024 * 1024;  // of the sketch; fits the caches of sm_80 and later

  TagcEncodeJob job;
  int64_t stripe_words;  // of each block's words in the index: a power of two

  // How many words keep a stripe of the sketch within `bytes`; at least one.
  static int64_t words_of_stripe(const TagcShape& shape, int64_t bytes) {
    int64_t words = shape.block_elements / 32;
    while (words > 1 && int64_t{4} * 32 * words * shape.num_rows > bytes) {
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
    const uint32_t marks = job.index()[word];
    if (marks == 0 || is_flagged(job.flags(), block)) {
      return 0;
    }
    const auto rows = RowTable<kShortRows>(job.rows)[block];
    auto* cells = reinterpret_cast<uint32_t*>(job.packet + job.layout.sketch);
    for_each_marked_byte(job, word, marks, [&](int byte, uint32_t marks_of_byte, Eight eight) {
      ISTHMUS_UNROLL
      for (int i = 0; i < 8; ++i) {
        if ((marks_of_byte >> i & 1) != 0) {
          for (int r = 0; r < 3; ++r) {
            group.apply_xor(
                cells[int64_t{rows.value[r]} * job.shape.block_elements + 32 * word_of_block + 8 * byte + i],
                bits_of(eight.value[i]));
          }
          eight.value[i] = 0;
        }
      }
      const int64_t first = 32 * word + 8 * byte;
      store_neighbours(eight, 1, job.residual + first, job.shape.num_elements - first);
    });
    return count_bits(marks);
  }
};

}  // namespace isthmus::kernels::ISTHMUS_KERNEL_NAMESPACE
