// The block algorithm of weight differences: an element's law, its token and its plain bits. It is the same on every
// executor, a template over Lanes, whose Word and Int are uint32_t and int32_t or vectors of these with the same
// operators.
#pragma once

#include <cstdint>

#include "kernels/block/host_device.h"
#include "kernels/weights/layout.h"

namespace isthmus::kernels {

// One lane, for a thread of a GPU or a CPU without vectors.
struct OneWeightLane {
  using Word = uint32_t;
  using Int = int32_t;
};

// The law under which an element moves, and how many bits of the move are sent plain. Both ends know it, because it
// follows only from the old pattern and the group's estimate.
template <typename Lanes>
struct WeightLaw {
  typename Lanes::Int row;
  typename Lanes::Int plain_bits;
};

// What an element's move becomes.
template <typename Lanes>
struct WeightSymbol {
  typename Lanes::Int token;
  typename Lanes::Word plain;
};

template <typename Int>
[[gnu::always_inline]] ISTHMUS_DEVICE Int smaller(Int a, Int b) {
  return a < b ? a : b;
}
template <typename Int>
[[gnu::always_inline]] ISTHMUS_DEVICE Int larger(Int a, Int b) {
  return a > b ? a : b;
}

// The group's estimate, shifted to where law_of_weight() needs it.
template <typename Format>
ISTHMUS_DEVICE int32_t weight_scale(int8_t moved) {
  return int32_t{moved} + Format::kBias + Format::kMantissaBits;
}

// Numbers patterns in the order of their values, with -0 just below 0: neighbours differ by 1, modulo 2^bits. The
// function is its own inverse.
template <typename Format, typename Word>
[[gnu::always_inline]] ISTHMUS_DEVICE Word ordered_weight(Word bits) {
  constexpr uint32_t kMagnitude = (1U << (Format::kBits - 1)) - 1;
  const Word is_negative = bits >> (Format::kBits - 1);
  return bits ^ ((Word{} - is_negative) & kMagnitude);
}

// size: log2 of how far elements with this exponent should move, in units of the last place. Up to size 1 each step has
// a token. Above it steps are 2^(size - 1) long, and their lower bits are plain. Where the old value is as small as the
// move, the new exponent is sent, and the mantissa is plain. A +0 is expected to stay, as padding does.
template <typename Format, typename Lanes>
[[gnu::always_inline]] ISTHMUS_DEVICE WeightLaw<Lanes> law_of_weight(typename Lanes::Word old_bits, int32_t scale) {
  using Int = typename Lanes::Int;
  constexpr int32_t kNewExponent = Format::kMantissaBits - 1;  // from this size on
  constexpr Int kNone{};
  const Int exponent = (Int)(old_bits >> Format::kMantissaBits & ((1U << Format::kExponentBits) - 1));
  const Int size = scale - larger(exponent, kNone + 1);
  const Int small = smaller(larger(size, kNone - 9), kNone + 2) + 9;
  const Int large = smaller(larger(size - (kNewExponent - 1), kNone), kNone + 4);
  const Int plain_bits = size >= kNewExponent ? kNone + Format::kMantissaBits : larger(size - 1, kNone);
  const auto was_zero = old_bits == 0;
  return {was_zero ? kNone : small + large, was_zero ? kNone : plain_bits};
}

// How many plain bits go in this stage: stages have kWeightPlainBits each, the lowest bits first.
template <typename Lanes>
[[gnu::always_inline]] ISTHMUS_DEVICE typename Lanes::Word plain_bits_of_stage(typename Lanes::Int plain_bits,
                                                                               int stage) {
  using Int = typename Lanes::Int;
  constexpr Int kNone{};
  return (typename Lanes::Word)smaller(larger(plain_bits - stage * kWeightPlainBits, kNone), kNone + kWeightPlainBits);
}

// The exponent of token 0 in a law of new exponents. Each later pair of tokens, one for each sign, is one exponent
// lower.
template <typename Format>
[[gnu::always_inline]] ISTHMUS_DEVICE int32_t largest_exponent(int32_t scale) {
  return scale - (Format::kMantissaBits - 1) + 2;
}

inline constexpr int32_t kFirstLawOfExponents = 12;

// Makes an escape if the move has no token.
template <typename Format, typename Lanes>
[[gnu::always_inline]] ISTHMUS_DEVICE WeightSymbol<Lanes> weight_symbol(typename Lanes::Word old_bits,
                                                                        typename Lanes::Word new_bits,
                                                                        WeightLaw<Lanes> law, int32_t scale) {
  using Int = typename Lanes::Int;
  using Word = typename Lanes::Word;
  constexpr Int kNone{};
  constexpr Word kOne = Word{} + 1;
  constexpr int kUnused = 32 - Format::kBits;
  // Sign-extended from Format::kBits: differences wrap around, and so does their inverse.
  const Word difference = ordered_weight<Format>(new_bits) - ordered_weight<Format>(old_bits);
  const Int step = (Int)(difference << kUnused) >> kUnused;
  const Int by_step = (Int)((Word)(step >> law.plain_bits) + static_cast<uint32_t>(kWeightNoChange));
  const Int exponent = (Int)(new_bits >> Format::kMantissaBits & ((1U << Format::kExponentBits) - 1));
  const Int changes_sign = (Int)((new_bits ^ old_bits) >> (Format::kBits - 1));
  const Int by_exponent = 2 * (largest_exponent<Format>(scale) - exponent) + changes_sign;
  const auto is_exponent = law.row >= kFirstLawOfExponents;
  const Int token = is_exponent ? by_exponent : by_step;
  const Word plain = (is_exponent ? new_bits : (Word)step) & ((kOne << (Word)law.plain_bits) - 1);
  const auto has_token = (Word)token < (Word{} + kWeightEscape);
  return {has_token ? token : kNone + kWeightEscape, plain};
}

// The new pattern. That of an escape is wrong here, and patched afterwards.
template <typename Format, typename Lanes>
[[gnu::always_inline]] ISTHMUS_DEVICE typename Lanes::Word moved_weight(typename Lanes::Word old_bits,
                                                                        WeightSymbol<Lanes> symbol,
                                                                        WeightLaw<Lanes> law, int32_t scale) {
  using Word = typename Lanes::Word;
  constexpr uint32_t kAll = Format::kBits == 32 ? ~0U : (1U << (Format::kBits % 32)) - 1;
  constexpr uint32_t kSign = 1U << (Format::kBits - 1);
  const Word step = ((Word)(symbol.token - kWeightNoChange) << (Word)law.plain_bits) + symbol.plain;
  const Word by_step = ordered_weight<Format>((ordered_weight<Format>(old_bits) + step) & kAll);
  const Word exponent = (Word)(largest_exponent<Format>(scale) - (symbol.token >> 1));
  const Word sign = (old_bits & kSign) ^ ((Word)symbol.token & 1U) << (Format::kBits - 1);
  const Word by_exponent = sign | (exponent << Format::kMantissaBits & (kSign - 1)) | symbol.plain;
  const auto is_exponent = law.row >= kFirstLawOfExponents;
  return is_exponent ? by_exponent : by_step;
}

}  // namespace isthmus::kernels
