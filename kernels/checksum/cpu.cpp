// The checksum of words in the widest vectors that the instruction set has. Compiled once for each.
#include "kernels/checksum/cpu.h"

#include <cstdint>

// clang-tidy reads the headers of GCC, whose intrinsics it does not know.
#if defined(__SSE2__) && !defined(__clang_analyzer__)
#define ISTHMUS_CHECKSUM_INTRINSICS
#include <immintrin.h>
#endif

#include "kernels/block/hashes.h"

namespace isthmus::kernels::ISTHMUS_KERNEL_NAMESPACE {

#if defined(__AVX512F__)
inline constexpr int64_t kChecksumLanes = 8;  // words of a vector
#elif defined(__AVX2__)
inline constexpr int64_t kChecksumLanes = 4;
#else
inline constexpr int64_t kChecksumLanes = 2;
#endif

using WideVector = uint64_t __attribute__((vector_size(8 * kChecksumLanes)));
using HalfVector = uint32_t __attribute__((vector_size(8 * kChecksumLanes)));
struct [[gnu::packed, gnu::aligned(1), gnu::may_alias]] UnalignedWideVector {
  WideVector vector;
};

[[gnu::always_inline]] inline WideVector swap_halves(WideVector a) {
#ifndef ISTHMUS_CHECKSUM_INTRINSICS
  return a << 32 | a >> 32;
#elif defined(__AVX512F__)
  return (WideVector)_mm512_maskz_shuffle_epi32(0xffff, (__m512i)a, _MM_PERM_CDAB);  // GCC 12 warns without the mask
#elif defined(__AVX2__)
  return (WideVector)_mm256_shuffle_epi32((__m256i)a, _MM_SHUFFLE(2, 3, 0, 1));
#else
  return (WideVector)_mm_shuffle_epi32((__m128i)a, _MM_SHUFFLE(2, 3, 0, 1));
#endif
}

// The products of the words' lower halves. The compilers would multiply whole words.
[[gnu::always_inline]] inline WideVector multiply_low(WideVector a, WideVector b) {
#ifndef ISTHMUS_CHECKSUM_INTRINSICS
  return (a & 0xffffffff) * (b & 0xffffffff);
#elif defined(__AVX512F__)
  return (WideVector)_mm512_maskz_mul_epu32(0xff, (__m512i)a, (__m512i)b);
#elif defined(__AVX2__)
  return (WideVector)_mm256_mul_epu32((__m256i)a, (__m256i)b);
#else
  return (WideVector)_mm_mul_epu32((__m128i)a, (__m128i)b);
#endif
}

// As checksum_of_word().
[[gnu::always_inline]] inline WideVector checksum_of_words(WideVector words, WideVector numbers) {
  const WideVector keys = numbers ^ multiply_low(numbers, swap_halves(numbers));
  const auto mixed = (WideVector)((HalfVector)words + (HalfVector)keys);
  const WideVector swapped = swap_halves(mixed);
  return multiply_low(mixed, swapped) + swapped;
}

template <bool kCopy>
uint64_t walk_words(const void* from, void* to, int64_t num_words, int64_t place) {
  constexpr int64_t kVectors = 16 / kChecksumLanes < 4 ? 16 / kChecksumLanes : 4;  // whose arithmetic overlaps
  constexpr int64_t kStepWords = kVectors * kChecksumLanes;
  const auto* bytes = static_cast<const char*>(from);
  auto* copied = static_cast<char*>(to);
  WideVector numbers[kVectors];
  WideVector sums[kVectors] = {};
  for (int64_t v = 0; v < kVectors; ++v) {
    for (int64_t lane = 0; lane < kChecksumLanes; ++lane) {
      numbers[v][lane] = static_cast<uint64_t>(place + v * kChecksumLanes + lane + 1) * kGoldenRatio;
    }
  }
  int64_t w = 0;
  for (; w + kStepWords <= num_words; w += kStepWords) {
    for (int64_t v = 0; v < kVectors; ++v) {
      const int64_t offset = (w + v * kChecksumLanes) * kChecksumWordBytes;
      const WideVector words = reinterpret_cast<const UnalignedWideVector*>(bytes + offset)->vector;
      if constexpr (kCopy) {
        reinterpret_cast<UnalignedWideVector*>(copied + offset)->vector = words;
      }
      sums[v] += checksum_of_words(words, numbers[v]);
      numbers[v] += kStepWords * kGoldenRatio;
    }
  }
  uint64_t sum = 0;
  for (; w < num_words; ++w) {
    uint64_t word = 0;
    __builtin_memcpy(&word, bytes + w * kChecksumWordBytes, sizeof(word));
    if constexpr (kCopy) {
      __builtin_memcpy(copied + w * kChecksumWordBytes, &word, sizeof(word));
    }
    sum += checksum_of_word(word, place + w);
  }
  for (int64_t v = 0; v < kVectors; ++v) {
    for (int64_t lane = 0; lane < kChecksumLanes; ++lane) {
      sum += sums[v][lane];
    }
  }
  return sum;
}

inline uint64_t sum_words(const void* words, int64_t num_words, int64_t place) {
  return walk_words<false>(words, nullptr, num_words, place);
}
inline uint64_t copy_words(const void* from, void* to, int64_t num_words, int64_t place) {
  return walk_words<true>(from, to, num_words, place);
}

constexpr ChecksumKernels kChecksumKernels = {.sum = sum_words, .copy = copy_words};

}  // namespace isthmus::kernels::ISTHMUS_KERNEL_NAMESPACE

namespace isthmus::kernels {

const ChecksumKernels& checksum_kernels_of(ISTHMUS_KERNEL_NAMESPACE::Instructions /*set*/) {
  return ISTHMUS_KERNEL_NAMESPACE::kChecksumKernels;
}

}  // namespace isthmus::kernels
