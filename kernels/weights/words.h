// The elements of a word, and bits of them: Words for any executor. Elements past the last are +0, and stay.
#pragma once

#include <cstdint>

#include "kernels/block/checksum_passes.h"
#include "kernels/weights/bits.h"
#include "kernels/weights/layout.h"

namespace isthmus::kernels::ISTHMUS_KERNEL_NAMESPACE {

// Numbers patterns in the order of their values, with -0 just below 0: neighbours differ by 1, modulo 2^bits. The
// function is its own inverse.
template <typename Bits>
ISTHMUS_DEVICE Bits ordered_weight(Bits bits) {
  constexpr int kSign = 8 * sizeof(Bits) - 1;
  return static_cast<Bits>(bits ^ ((Bits{0} - static_cast<Bits>(bits >> kSign)) & ((Bits{1} << kSign) - 1)));
}

// How far an element moves, in representable values, and whether down.
template <typename Bits>
struct WeightMove {
  Bits distance;
  bool is_down;

  ISTHMUS_DEVICE WeightMove(Bits old_bits, Bits new_bits) {
    const auto step = static_cast<Bits>(ordered_weight(new_bits) - ordered_weight(old_bits));
    is_down = step >> (8 * sizeof(Bits) - 1) != 0;
    distance = is_down ? static_cast<Bits>(0 - step) : step;
  }
};
template <typename Bits>
ISTHMUS_DEVICE Bits moved_weight(Bits old_bits, Bits distance, bool is_down) {
  return ordered_weight(static_cast<Bits>(ordered_weight(old_bits) + (is_down ? 0 - distance : distance)));
}

template <typename Format>
struct WeightWords {
  using Bits = typename Format::Bits;

  const Bits* old_bits;  // a decoder's are new_bits
  Bits* new_bits;        // an encoder only reads them
  int num_elements;

  // What the encoder asks for the elements of a word that changed.
  struct Values {
    const Bits* old_bits;
    const Bits* new_bits;

    ISTHMUS_DEVICE uint64_t signs(uint64_t changed) const {
      return collect(changed, [](const WeightMove<Bits>& move) { return move.is_down; });
    }
    ISTHMUS_DEVICE uint64_t bits(int place, uint64_t longer) const {
      return collect(longer, [=](const WeightMove<Bits>& move) { return (move.distance >> place & 1) != 0; });
    }

   private:
    template <typename Test>
    ISTHMUS_DEVICE uint64_t collect(uint64_t mask, const Test& test) const {
      uint64_t found = 0;
      int count = 0;
      for_each_bit(mask, 0, [&](int i) { found |= uint64_t{test({old_bits[i], new_bits[i]}) ? 1U : 0U} << count++; });
      return found;
    }
  };
  ISTHMUS_DEVICE Values values(int word, uint64_t /*changed*/) const {
    return {old_bits + first_of(word), new_bits + first_of(word)};
  }

  ISTHMUS_DEVICE void split_exponents(int word, WeightMasks<Format>& masks) const {
    uint64_t found[kWeightClassBits] = {};
    for_each_element(old_bits, word, [&](int i, Bits bits) {
      ISTHMUS_UNROLL
      for (int bit = 0; bit < kWeightClassBits; ++bit) {
        found[bit] |= uint64_t{bits >> (Format::kMantissaBits + bit) & 1U} << i;
      }
    });
    ISTHMUS_UNROLL
    for (int bit = 0; bit < kWeightClassBits; ++bit) {
      masks.exponent[bit][word] = found[bit];
    }
  }

  // Levels begin as zeros.
  ISTHMUS_DEVICE void split_distances(int word, WeightMasks<Format>& masks) const {
    const Bits* old_word = old_bits + first_of(word);
    for_each_element(new_bits, word, [&](int i, Bits bits) {
      if (bits != old_word[i]) {
        note_move(masks, word, i, {old_word[i], bits});
      }
    });
  }

  // Moves those elements of a word that change, by distances whose bits are added one after another.
  class Moves {
   public:
    ISTHMUS_DEVICE Moves(const WeightWords& words, int word, WeightMasks<Format>& masks, uint64_t changed,
                         uint64_t signs)
        : elements_(words.new_bits + first_of(word)), masks_(&masks), word_(word), signs_(signs) {
      const int left = words.num_elements - first_of(word);
      changed_ = changed & (left < kWeightWordElements ? lower_bits(left) : ~uint64_t{0});
    }
    ISTHMUS_DEVICE void add(int bit, uint64_t bits) {
      masks_->level[bit][word_] = bits;
      num_bits_ = bit + 1;
    }
    // Whatever was received, elements past the last are not touched.
    ISTHMUS_DEVICE void finish() const {
      for_each_bit(changed_, 0, [&](int i) {
        Bits distance = 0;
        for (int bit = 0; bit < num_bits_; ++bit) {
          distance |= static_cast<Bits>(static_cast<Bits>(masks_->level[bit][word_] >> i & 1) << bit);
        }
        elements_[i] = moved_weight(elements_[i], distance, (signs_ >> i & 1) != 0);
      });
    }

   private:
    Bits* elements_;
    WeightMasks<Format>* masks_;
    int word_;
    int num_bits_ = 0;
    uint64_t changed_;
    uint64_t signs_;
  };

 protected:
  static ISTHMUS_DEVICE int first_of(int word) { return word * kWeightWordElements; }
  static ISTHMUS_DEVICE void note_move(WeightMasks<Format>& masks, int word, int i, const WeightMove<Bits>& move) {
    Bits left = move.distance;
    for (int level = 0; left != 0; ++level, left = static_cast<Bits>(left >> 1)) {
      masks.level[level][word] |= uint64_t{1} << i;
    }
  }

 private:
  // visit(i, bits) for each element of a word, loaded 16 bytes at a time where they are aligned.
  template <typename Visit>
  ISTHMUS_DEVICE void for_each_element(const Bits* all, int word, const Visit& visit) const {
    constexpr int kPerPair = sizeof(WordPair) / sizeof(Bits);
    constexpr int kPerHalf = kPerPair / 2;
    const Bits* elements = all + first_of(word);
    const int left = num_elements - first_of(word);
    if (left >= kWeightWordElements && is_aligned(elements, sizeof(WordPair))) {
      ISTHMUS_DO_NOT_UNROLL
      for (int first = 0; first < kWeightWordElements; first += kPerPair) {
        const WordPair pair = *reinterpret_cast<const WordPair*>(elements + first);
        ISTHMUS_UNROLL
        for (int i = 0; i < kPerPair; ++i) {
          visit(first + i, static_cast<Bits>(pair.value[i / kPerHalf] >> (i % kPerHalf * Format::kBits)));
        }
      }
      return;
    }
    for (int i = 0; i < kWeightWordElements && i < left; ++i) {
      visit(i, elements[i]);
    }
  }
};

}  // namespace isthmus::kernels::ISTHMUS_KERNEL_NAMESPACE
