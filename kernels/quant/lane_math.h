// Arithmetic of codec `quant` on the sixteen lanes of a row: random signs, the Hadamard transform, sums and maxima; and
// codes of a block as they are packed, in planes of equally many bits of each code.
//
// Templates over Lanes (kernels/block/lanes16.h); kernels/quant/block.h says what that asks of callers.
#pragma once

#include <cstdint>

#include "kernels/block/float_types.h"
#include "kernels/block/group.h"
#include "kernels/block/hashes.h"
#include "kernels/quant/layout.h"

// Always inlined, so that lanes stay in registers: the compiler would leave calls. Not under sanitizers, where one
// large function takes it many minutes.
#ifdef ISTHMUS_CALL_LANES
#define ISTHMUS_QUANT ISTHMUS_DEVICE
#else
#define ISTHMUS_QUANT [[gnu::always_inline]] ISTHMUS_DEVICE
#endif

namespace isthmus::kernels::ISTHMUS_KERNEL_NAMESPACE {

// 2^23: a number added to it is rounded to an integer, which the sum's lowest bits hold.
inline constexpr float kQuantIntegers = 0x1p23F;
inline constexpr uint32_t kQuantIntegerBits = 0x4b000000;

// The random bits of one block: the sign of element (row, lane) is bit `row` of the lane's word.
template <typename Lanes>
ISTHMUS_QUANT typename Lanes::Word random_signs(const Lanes& lanes, uint64_t seed, int64_t block) {
  return lanes.each([=](int lane) {
    const uint64_t counter = static_cast<uint64_t>(8 * block + lane / 2 + 1);
    return static_cast<uint32_t>(mix(seed + kGoldenRatio * counter) >> (32 * (lane % 2)));
  });
}

template <typename Lanes>
ISTHMUS_QUANT typename Lanes::Float flip_signs(const Lanes& lanes, typename Lanes::Float value,
                                               typename Lanes::Word signs, int row) {
  return lanes.floats(lanes.bits(value) ^ ((signs << (31 - row)) & kSignBit));
}

// In lanes without bit kDistance: a + b; in the others: b - a; where b is the lane's partner.
template <int kDistance, typename Lanes>
ISTHMUS_QUANT typename Lanes::Float butterfly(const Lanes& lanes, typename Lanes::Float a) {
  const typename Lanes::Word upper = lanes.each([](int lane) { return (lane & kDistance) != 0 ? kSignBit : 0U; });
  return lanes.template exchange<kDistance>(a) + lanes.floats(lanes.bits(a) ^ upper);
}

template <typename Lanes>
using QuantGroupRows = typename Lanes::Float[kQuantGroupRows];

// The Hadamard transform of a group without its factor 1 / sqrt(n): stages ascend, lanes first.
template <typename Lanes>
ISTHMUS_QUANT void hadamard(const Lanes& lanes, QuantGroupRows<Lanes>& rows) {
  ISTHMUS_UNROLL
  for (int r = 0; r < kQuantGroupRows; ++r) {
    rows[r] = butterfly<1>(lanes, rows[r]);
    rows[r] = butterfly<2>(lanes, rows[r]);
    rows[r] = butterfly<4>(lanes, rows[r]);
    rows[r] = butterfly<8>(lanes, rows[r]);
  }
  ISTHMUS_UNROLL
  for (int distance = 1; distance < kQuantGroupRows; distance *= 2) {
    ISTHMUS_UNROLL
    for (int r = 0; r < kQuantGroupRows; ++r) {
      if ((r & distance) == 0) {
        const typename Lanes::Float upper = rows[r + distance];
        rows[r + distance] = rows[r] - upper;
        rows[r] = rows[r] + upper;
      }
    }
  }
}

// Summed in a tree that is the same on all executors.
template <typename Lanes>
ISTHMUS_QUANT float sum_of_lanes(const Lanes& lanes, typename Lanes::Float a) {
  a = a + lanes.template exchange<1>(a);
  a = a + lanes.template exchange<2>(a);
  a = a + lanes.template exchange<4>(a);
  return lanes.common(a + lanes.template exchange<8>(a));
}

// The largest magnitude's bit pattern. That of NaN is above that of Inf.
template <typename Lanes>
ISTHMUS_QUANT uint32_t largest_magnitude(const Lanes& lanes, const QuantGroupRows<Lanes>& rows) {
  typename Lanes::Word largest = {};
  ISTHMUS_UNROLL
  for (int r = 0; r < kQuantGroupRows; ++r) {
    largest = lanes.max(largest, lanes.bits(rows[r]) & ~kSignBit);
  }
  const auto with_partner = [&](auto partner) { return lanes.max(largest, lanes.bits(partner)); };
  largest = with_partner(lanes.template exchange<1>(lanes.floats(largest)));
  largest = with_partner(lanes.template exchange<2>(lanes.floats(largest)));
  largest = with_partner(lanes.template exchange<4>(lanes.floats(largest)));
  return lanes.common(with_partner(lanes.template exchange<8>(lanes.floats(largest))));
}

template <typename Lanes>
ISTHMUS_QUANT float energy_of(const Lanes& lanes, const QuantGroupRows<Lanes>& rows) {
  typename Lanes::Float sum = rows[0] * rows[0];
  ISTHMUS_UNROLL
  for (int r = 1; r < kQuantGroupRows; ++r) {
    sum = sum + rows[r] * rows[r];
  }
  return sum_of_lanes(lanes, sum);
}

// A power of two that brings a magnitude into [1, 4), or as near as float32 allows.
ISTHMUS_QUANT float normalizer(uint32_t magnitude) {
  const uint32_t exponent = magnitude >> 23;
  return float_of((254 - (exponent > 253 ? 253 : exponent)) << 23);
}

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

// A plane holds kBits bits of each code, from bit `shift` on, for 32 / kBits rows in a word: words `shift` to
// `shift` + kBits - 1 of the block.
template <int kBits, typename Lanes, typename Words>
ISTHMUS_QUANT void pack_plane(const Lanes& /*lanes*/, const typename Lanes::Word* codes, int shift, bool present,
                              Words& words) {
  constexpr int kRowsOfWord = 32 / kBits;
  constexpr uint32_t kMask = (1U << kBits) - 1;
  ISTHMUS_UNROLL
  for (int word = 0; word < kBits; ++word) {
    typename Lanes::Word packed = {};
    ISTHMUS_UNROLL
    for (int r = 0; r < kRowsOfWord; ++r) {
      packed = packed | (((codes[word * kRowsOfWord + r] >> shift) & kMask) << (kBits * r));
    }
    words.store(shift + word, packed, present);
  }
}
template <int kBits, typename Lanes, typename Words>
ISTHMUS_QUANT void unpack_plane(const Lanes& /*lanes*/, Words& words, int shift, bool present,
                                typename Lanes::Word* codes) {
  constexpr int kRowsOfWord = 32 / kBits;
  constexpr uint32_t kMask = (1U << kBits) - 1;
  ISTHMUS_UNROLL
  for (int word = 0; word < kBits; ++word) {
    const typename Lanes::Word packed = words.load(shift + word, present);
    ISTHMUS_UNROLL
    for (int r = 0; r < kRowsOfWord; ++r) {
      const typename Lanes::Word bits = ((packed >> (kBits * r)) & kMask) << shift;
      typename Lanes::Word& code = codes[word * kRowsOfWord + r];
      code = shift == 0 ? bits : code | bits;
    }
  }
}

// A code of three, five, six or seven bits becomes planes of four, two and one of them, the lowest bits first.
template <typename Lanes, typename Words>
ISTHMUS_QUANT void pack_codes(const Lanes& lanes, int bits, const typename Lanes::Word* codes, bool present,
                              Words& words) {
  if (bits == 8) {
    pack_plane<8>(lanes, codes, 0, present, words);
  }
  if ((bits & 4) != 0) {
    pack_plane<4>(lanes, codes, 0, present, words);
  }
  if ((bits & 2) != 0) {
    pack_plane<2>(lanes, codes, bits & 4, present, words);
  }
  if ((bits & 1) != 0) {
    pack_plane<1>(lanes, codes, bits & 6, present, words);
  }
}
template <typename Lanes, typename Words>
ISTHMUS_QUANT void unpack_codes(const Lanes& lanes, int bits, Words& words, bool present, typename Lanes::Word* codes) {
  if (bits == 8) {
    unpack_plane<8>(lanes, words, 0, present, codes);
  }
  if ((bits & 4) != 0) {
    unpack_plane<4>(lanes, words, 0, present, codes);
  }
  if ((bits & 2) != 0) {
    unpack_plane<2>(lanes, words, bits & 4, present, codes);
  }
  if ((bits & 1) != 0) {
    unpack_plane<1>(lanes, words, bits & 6, present, codes);
  }
}

}  // namespace isthmus::kernels::ISTHMUS_KERNEL_NAMESPACE
