// Operations of the weights' coder on several of its 16 lanes at once: eight with AVX2, else one. A Lanes type has the
// types Word and Int (block.h) and these functions, which give the same results.
#pragma once

#include <array>
#include <cstdint>

#include "kernels/weights/block.h"
#include "kernels/weights/layout.h"

// clang-tidy reads the headers of GCC, whose intrinsics it does not know.
#if defined(__AVX2__) && !defined(__clang_analyzer__)
#define ISTHMUS_EIGHT_WEIGHT_LANES
#include <immintrin.h>
#endif

namespace isthmus::kernels::ISTHMUS_KERNEL_NAMESPACE {

#ifdef ISTHMUS_EIGHT_WEIGHT_LANES

// Where lanes find their words, for each set of lanes that take or send one.
struct LaneShuffles {
  alignas(64) std::array<std::array<uint8_t, 8>, 256> spread{};   // which of the next words each lane takes
  alignas(64) std::array<std::array<uint8_t, 16>, 256> gather{};  // bytes of the lanes that send, at the upper end
};
constexpr LaneShuffles make_lane_shuffles() {
  LaneShuffles shuffles;
  for (int mask = 0; mask < 256; ++mask) {
    int count = 0;
    for (int lane = 0; lane < 8; ++lane) {
      shuffles.spread[mask][lane] = static_cast<uint8_t>(count);
      count += mask >> lane & 1;
    }
    int place = 8 - count;
    for (int lane = 0; lane < 8; ++lane) {
      if ((mask >> lane & 1) != 0) {
        shuffles.gather[mask][2 * place] = static_cast<uint8_t>(2 * lane);
        shuffles.gather[mask][2 * place + 1] = static_cast<uint8_t>(2 * lane + 1);
        ++place;
      }
    }
  }
  return shuffles;
}
inline constexpr LaneShuffles kLaneShuffles = make_lane_shuffles();

struct WeightLanes {
  static constexpr int64_t kLanes = 8;
  using Word = uint32_t __attribute__((vector_size(32)));
  using Int = int32_t __attribute__((vector_size(32)));

  [[gnu::always_inline]] static Word load(const uint16_t* bits) {
    return (Word)_mm256_cvtepu16_epi32(_mm_loadu_si128(reinterpret_cast<const __m128i*>(bits)));
  }
  [[gnu::always_inline]] static Word load(const uint32_t* bits) {
    return (Word)_mm256_loadu_si256(reinterpret_cast<const __m256i*>(bits));
  }
  [[gnu::always_inline]] static void store(Word values, uint16_t* bits) {
    const __m256i packed = _mm256_packus_epi32((__m256i)values, (__m256i)values);
    const __m256i ordered = _mm256_permute4x64_epi64(packed, 0x08);
    _mm_storeu_si128(reinterpret_cast<__m128i*>(bits), _mm256_castsi256_si128(ordered));
  }
  [[gnu::always_inline]] static void store(Word values, uint32_t* bits) {
    _mm256_storeu_si256(reinterpret_cast<__m256i*>(bits), (__m256i)values);
  }
  [[gnu::always_inline]] static Word look_up(const uint32_t* table, Word index) {
    return (Word)_mm256_i32gather_epi32(reinterpret_cast<const int*>(table), (__m256i)index, 4);
  }
  static uint32_t lane(Word values, int lane) { return values[lane]; }
  // Bit i is the highest bit of lane i.
  [[gnu::always_inline]] static unsigned highest_bits(Word values) {
    return static_cast<unsigned>(_mm256_movemask_ps(_mm256_castsi256_ps((__m256i)values)));
  }
  [[gnu::always_inline]] static bool any(Word values) {
    return _mm256_testz_si256((__m256i)values, (__m256i)values) == 0;
  }
  // Each lane of small state takes a word, the lowest lane first. Reads 16 bytes.
  [[gnu::always_inline]] static Word refill(Word state, const uint16_t*& words) {
    const Int takes = (Int)state < static_cast<int32_t>(kWeightLeastState);
    const unsigned lanes = highest_bits((Word)takes);
    const __m256i next = _mm256_cvtepu16_epi32(_mm_loadu_si128(reinterpret_cast<const __m128i*>(words)));
    const auto* spread = reinterpret_cast<const __m128i*>(kLaneShuffles.spread[lanes].data());
    const __m256i taken = _mm256_permutevar8x32_epi32(next, _mm256_cvtepu8_epi32(_mm_loadl_epi64(spread)));
    words += __builtin_popcount(lanes);
    return takes ? state << kWeightWordBits | (Word)taken : state;
  }
  // Each lane whose state reaches `limit` (at most 2^26) sends a word, downwards, the highest lane first. Writes 16
  // bytes below `words`.
  [[gnu::always_inline]] static Word drain(Word state, Word limit, uint16_t*& words) {
    const Int sends = (Int)state >= (Int)limit;
    const unsigned lanes = highest_bits((Word)sends);
    const Word low = state & ((1U << kWeightWordBits) - 1);
    const __m256i both = _mm256_permute4x64_epi64(_mm256_packus_epi32((__m256i)low, (__m256i)low), 0x08);
    const auto* gather = reinterpret_cast<const __m128i*>(kLaneShuffles.gather[lanes].data());
    const __m128i sent = _mm_shuffle_epi8(_mm256_castsi256_si128(both), _mm_load_si128(gather));
    _mm_storeu_si128(reinterpret_cast<__m128i*>(words - 8), sent);
    words -= __builtin_popcount(lanes);
    return sends ? state >> kWeightWordBits : state;
  }
  // state / divisor, rounded down, for quotients below 2^16 and states below 2^26, where the float32 quotient is off by
  // at most 1.
  [[gnu::always_inline]] static Word quotient(Word state, Word divisor) {
    const __m256 ratio = _mm256_div_ps(_mm256_cvtepi32_ps((__m256i)state), _mm256_cvtepi32_ps((__m256i)divisor));
    const Int whole = (Int)_mm256_cvttps_epi32(ratio);
    const Int rest = (Int)state - whole * (Int)divisor;
    return (Word)(whole + (rest >> 31) - (rest >= (Int)divisor));
  }
};

#else

struct WeightLanes : OneWeightLane {
  static constexpr int64_t kLanes = 1;

  template <typename Bits>
  static uint32_t load(const Bits* bits) {
    return *bits;
  }
  template <typename Bits>
  static void store(uint32_t value, Bits* bits) {
    *bits = static_cast<Bits>(value);
  }
  static uint32_t look_up(const uint32_t* table, uint32_t index) { return table[index]; }
  static uint32_t lane(uint32_t value, int /*lane*/) { return value; }
  static unsigned highest_bits(uint32_t value) { return value >> 31; }
  static bool any(uint32_t value) { return value != 0; }
  static uint32_t refill(uint32_t state, const uint16_t*& words) {
    return state < kWeightLeastState ? state << kWeightWordBits | *words++ : state;
  }
  static uint32_t drain(uint32_t state, uint32_t limit, uint16_t*& words) {
    if (state < limit) {
      return state;
    }
    *--words = static_cast<uint16_t>(state);
    return state >> kWeightWordBits;
  }
  static uint32_t quotient(uint32_t state, uint32_t divisor) { return state / divisor; }
};

#endif

}  // namespace isthmus::kernels::ISTHMUS_KERNEL_NAMESPACE
