// Codes of a block of codec `quant` as they are packed: planes of equally many bits of each code.
#pragma once

#include <cstdint>

#include "kernels/quant/lane_math.h"
#include "kernels/quant/layout.h"

namespace isthmus::kernels::ISTHMUS_KERNEL_NAMESPACE {

// Where a block's packed codes lie. Others, too, may stand for it: store() and load() are called for each word once, in
// their order, by all lanes, with the same `present`.
template <typename Lanes, typename Memory>
struct QuantWords {
  const Lanes& lanes;
  Memory* memory;

  ISTHMUS_QUANT void store(int word, typename Lanes::Word packed, bool present) {
    lanes.store(packed, memory + int64_t{word} * kQuantLanes, present);
  }
  ISTHMUS_QUANT typename Lanes::Word load(int word, bool present) {
    return lanes.load(memory + int64_t{word} * kQuantLanes, present);
  }
};

// Packs kBits bits of each code, from bit `shift` on, for 32 / kBits rows in a word.
template <int kBits, typename Lanes, typename Words>
ISTHMUS_QUANT void pack_plane(const Lanes& /*lanes*/, const typename Lanes::Word* codes, int shift, bool present,
                              int first_word, Words& words) {
  constexpr int kRowsOfWord = 32 / kBits;
  constexpr uint32_t kMask = (1U << kBits) - 1;
  ISTHMUS_UNROLL
  for (int word = 0; word < kBits; ++word) {
    typename Lanes::Word packed = {};
    ISTHMUS_UNROLL
    for (int r = 0; r < kRowsOfWord; ++r) {
      packed = packed | (((codes[word * kRowsOfWord + r] >> shift) & kMask) << (kBits * r));
    }
    words.store(first_word + word, packed, present);
  }
}
template <int kBits, typename Lanes, typename Words>
ISTHMUS_QUANT void unpack_plane(const Lanes& /*lanes*/, int first_word, Words& words, int shift, bool present,
                                typename Lanes::Word* codes) {
  constexpr int kRowsOfWord = 32 / kBits;
  constexpr uint32_t kMask = (1U << kBits) - 1;
  ISTHMUS_UNROLL
  for (int word = 0; word < kBits; ++word) {
    const typename Lanes::Word packed = words.load(first_word + word, present);
    ISTHMUS_UNROLL
    for (int r = 0; r < kRowsOfWord; ++r) {
      const typename Lanes::Word bits = ((packed >> (kBits * r)) & kMask) << shift;
      typename Lanes::Word& code = codes[word * kRowsOfWord + r];
      code = shift == 0 ? bits : code | bits;
    }
  }
}

// Three bits become a plane of the lower two and a plane of the highest.
template <typename Lanes, typename Words>
ISTHMUS_QUANT void pack_codes(const Lanes& lanes, int bits, const typename Lanes::Word* codes, bool present,
                              Words& words) {
  switch (bits) {
    case 1:
      return pack_plane<1>(lanes, codes, 0, present, 0, words);
    case 2:
      return pack_plane<2>(lanes, codes, 0, present, 0, words);
    case 3:
      pack_plane<2>(lanes, codes, 0, present, 0, words);
      return pack_plane<1>(lanes, codes, 2, present, 2, words);
    case 4:
      return pack_plane<4>(lanes, codes, 0, present, 0, words);
    default:
      return pack_plane<8>(lanes, codes, 0, present, 0, words);
  }
}
template <typename Lanes, typename Words>
ISTHMUS_QUANT void unpack_codes(const Lanes& lanes, int bits, Words& words, bool present, typename Lanes::Word* codes) {
  switch (bits) {
    case 1:
      return unpack_plane<1>(lanes, 0, words, 0, present, codes);
    case 2:
      return unpack_plane<2>(lanes, 0, words, 0, present, codes);
    case 3:
      unpack_plane<2>(lanes, 0, words, 0, present, codes);
      return unpack_plane<1>(lanes, 2, words, 2, present, codes);
    case 4:
      return unpack_plane<4>(lanes, 0, words, 0, present, codes);
    default:
      return unpack_plane<8>(lanes, 0, words, 0, present, codes);
  }
}

}  // namespace isthmus::kernels::ISTHMUS_KERNEL_NAMESPACE
