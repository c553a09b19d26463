// The CPU executor of weight differences: one thread has all words of a block. Compiled once for each instruction set.
#include <algorithm>
#include <cstddef>
#include <cstring>

#include "kernels/weights/decode_block.h"
#include "kernels/weights/encode_block.h"
#include "kernels/weights/words.h"

// clang-tidy reads the headers of GCC, whose intrinsics it does not know.
#if defined(__SSE2__) && !defined(__clang_analyzer__)
#define ISTHMUS_VECTOR_MASKS
#include <immintrin.h>
#endif

namespace isthmus::kernels::ISTHMUS_KERNEL_NAMESPACE {

// One bit of each of 64 elements.
inline uint64_t bit_of_each(const uint16_t* elements, int bit) {
  uint64_t mask = 0;
#if defined(ISTHMUS_VECTOR_MASKS) && defined(__AVX512BW__)
  const __m512i wanted = _mm512_set1_epi16(static_cast<int16_t>(1U << bit));
  for (int i = 0; i < 64; i += 32) {
    mask |= uint64_t{_mm512_test_epi16_mask(_mm512_loadu_si512(elements + i), wanted)} << i;
  }
#elif defined(ISTHMUS_VECTOR_MASKS) && defined(__AVX2__)
  const auto load = [&](int i) {
    const __m256i found = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(elements + i));
    return _mm256_sll_epi16(found, _mm_cvtsi32_si128(15 - bit));
  };
  for (int i = 0; i < 64; i += 32) {
    const __m256i both = _mm256_permute4x64_epi64(_mm256_packs_epi16(load(i), load(i + 16)), 0xd8);
    mask |= uint64_t{static_cast<uint32_t>(_mm256_movemask_epi8(both))} << i;
  }
#elif defined(ISTHMUS_VECTOR_MASKS)
  const auto load = [&](int i) {
    const __m128i found = _mm_loadu_si128(reinterpret_cast<const __m128i*>(elements + i));
    return _mm_sll_epi16(found, _mm_cvtsi32_si128(15 - bit));
  };
  for (int i = 0; i < 64; i += 16) {
    mask |= static_cast<uint64_t>(_mm_movemask_epi8(_mm_packs_epi16(load(i), load(i + 8)))) << i;
  }
#else
  for (int i = 0; i < 64; ++i) {
    mask |= uint64_t{elements[i] >> bit & 1U} << i;
  }
#endif
  return mask;
}
inline uint64_t bit_of_each(const uint32_t* elements, int bit) {
  uint64_t mask = 0;
#if defined(ISTHMUS_VECTOR_MASKS) && defined(__AVX512BW__)
  const __m512i wanted = _mm512_set1_epi32(static_cast<int32_t>(1U << bit));
  for (int i = 0; i < 64; i += 16) {
    mask |= uint64_t{_mm512_test_epi32_mask(_mm512_loadu_si512(elements + i), wanted)} << i;
  }
#elif defined(ISTHMUS_VECTOR_MASKS) && defined(__AVX2__)
  for (int i = 0; i < 64; i += 8) {
    const __m256i found = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(elements + i));
    const __m256i first = _mm256_sll_epi32(found, _mm_cvtsi32_si128(31 - bit));
    mask |= uint64_t{static_cast<uint32_t>(_mm256_movemask_ps(_mm256_castsi256_ps(first)))} << i;
  }
#else
  for (int i = 0; i < 64; ++i) {
    mask |= uint64_t{elements[i] >> bit & 1U} << i;
  }
#endif
  return mask;
}

// Words of which many elements change are moved in vectors. The last ones of a block are padded first.
template <typename Format>
struct VectorWords : WeightWords<Format> {
  using Base = WeightWords<Format>;
  using Bits = typename Format::Bits;
  static constexpr int kFew = 6;
  static constexpr int kTop = Format::kBits - 1;

  Bits* padded_old;
  Bits* padded_new;

  // A block's last elements, too few for a word; what is missing is +0.
  struct Padded {
    Bits bits[kWeightWordElements] = {};
    Padded(const Bits* all, int num_elements) {
      std::copy_n(all + num_elements - num_elements % kWeightWordElements, num_elements % kWeightWordElements, bits);
    }
  };

  // The moves of a word's elements, all of them or only when they are asked for.
  struct Values : Base::Values {
    bool are_few;
    alignas(64) Bits distance[kWeightWordElements];
    alignas(64) Bits step[kWeightWordElements];

    Values(const Bits* old_word, const Bits* new_word, bool few) : Base::Values{old_word, new_word}, are_few(few) {
      if (are_few) {
        return;
      }
      for (int i = 0; i < kWeightWordElements; ++i) {
        step[i] = static_cast<Bits>(ordered_weight(new_word[i]) - ordered_weight(old_word[i]));
        const auto down = static_cast<Bits>(0 - (step[i] >> kTop));
        distance[i] = static_cast<Bits>((step[i] ^ down) - down);
      }
    }
    uint64_t signs(uint64_t changed) const {
      return are_few ? Base::Values::signs(changed) : gathered(bit_of_each(step, kTop), changed);
    }
    uint64_t bits(int place, uint64_t longer) const {
      return are_few ? Base::Values::bits(place, longer) : gathered(bit_of_each(distance, place), longer);
    }
  };
  Values values(int word, uint64_t changed) const {
    return {old_word(word), new_word(word), count_ones(changed) <= kFew};
  }

  void split_exponents(int word, WeightMasks<Format>& masks) const {
    for (int bit = 0; bit < kWeightClassBits; ++bit) {
      masks.exponent[bit][word] = bit_of_each(old_word(word), Format::kMantissaBits + bit);
    }
  }

  void split_distances(int word, WeightMasks<Format>& masks) const {
    const Bits* before = old_word(word);
    const Bits* now = new_word(word);
    alignas(64) Bits differs[kWeightWordElements];
    for (int i = 0; i < kWeightWordElements; ++i) {
      differs[i] = before[i] != now[i] ? static_cast<Bits>(~Bits{0}) : Bits{0};
    }
    const uint64_t changed = bit_of_each(differs, 0);
    if (count_ones(changed) <= kFew) {
      for_each_bit(changed, 0, [&](int i) { Base::note_move(masks, word, i, {before[i], now[i]}); });
      return;
    }
    const Values moves(before, now, false);
    Bits any = 0;
    for (const Bits distance : moves.distance) {
      any |= distance;
    }
    uint64_t longer = 0;
    for (int level = highest_one(any); level >= 0; --level) {
      longer |= bit_of_each(moves.distance, level);
      masks.level[level][word] = longer;
    }
  }

#if defined(ISTHMUS_VECTOR_MASKS) && defined(__AVX512BW__)
  static constexpr int kLanes = 64 / sizeof(Bits);
  using Vector [[gnu::vector_size(64)]] = Bits;

  // All bits of a lane where its bit is set.
  [[gnu::always_inline]] static Vector where(uint64_t bits) {
    return (Vector)(sizeof(Bits) == 2 ? _mm512_movm_epi16(static_cast<__mmask32>(bits))
                                      : _mm512_movm_epi32(static_cast<__mmask16>(bits)));
  }
#else
#ifdef __AVX2__
  static constexpr int kLanes = 32 / sizeof(Bits);
#else
  static constexpr int kLanes = 16 / sizeof(Bits);
#endif
  using Vector [[gnu::vector_size(kLanes * sizeof(Bits))]] = Bits;

  [[gnu::always_inline]] static Vector where(uint64_t bits) {
    Vector places;
    for (int lane = 0; lane < kLanes; ++lane) {
      places[lane] = static_cast<Bits>(1U << lane);
    }
    return (Vector)(((Vector{} + static_cast<Bits>(bits & 0xffff)) & places) != 0);
  }
#endif
  [[gnu::always_inline]] static Vector ordered(Vector bits) {
    return bits ^ ((Vector{} - (bits >> kTop)) & static_cast<Bits>((Bits{1} << kTop) - 1));
  }

  class Moves {
   public:
    Moves(const VectorWords& words, int word, const WeightMasks<Format>& /*masks*/, uint64_t /*changed*/,
          uint64_t signs)
        : elements_(words.new_word(word)), signs_(signs) {
      // The same word of the next block is on its way while this block is computed.
      for (size_t byte = 0; byte < sizeof(Bits) * kWeightWordElements; byte += 64) {
        __builtin_prefetch(reinterpret_cast<const std::byte*>(elements_ + kWeightBlockElements) + byte);
      }
    }
    void add(int bit, uint64_t bits) {
      const auto weight = static_cast<Bits>(1U << bit);
      for (int i = 0; i < kVectors; ++i) {
        distance_[i] |= where(bits >> (i * kLanes)) & weight;
      }
    }
    void finish() const {
      for (int i = 0; i < kVectors; ++i) {
        const Vector down = where(signs_ >> (i * kLanes));
        Vector old;
        std::memcpy(&old, elements_ + i * kLanes, sizeof(old));
        const Vector moved = ordered(ordered(old) + ((distance_[i] ^ down) - down));
        std::memcpy(elements_ + i * kLanes, &moved, sizeof(moved));
      }
    }

   private:
    static constexpr int kVectors = kWeightWordElements / kLanes;

    Bits* elements_;
    uint64_t signs_;
    Vector distance_[kVectors] = {};
  };

 private:
  bool is_whole(int word) const { return (word + 1) * kWeightWordElements <= this->num_elements; }
  const Bits* old_word(int word) const { return is_whole(word) ? this->old_bits + Base::first_of(word) : padded_old; }
  Bits* new_word(int word) const { return is_whole(word) ? this->new_bits + Base::first_of(word) : padded_new; }
};

template <typename Format>
WeightMasks<Format>& masks_in(WeightScratch& scratch) {
  return *reinterpret_cast<WeightMasks<Format>*>(scratch.masks);
}

template <typename Format>
int64_t encode_weight_block(const void* old_weights, const void* new_weights, int64_t count, void* out,
                            WeightScratch& scratch) {
  using Words = VectorWords<Format>;
  using Bits = typename Format::Bits;
  const auto num_elements = static_cast<int>(count);
  const auto* old_bits = static_cast<const Bits*>(old_weights);
  auto* new_bits = static_cast<Bits*>(const_cast<void*>(new_weights));  // an encoder only reads them
  const int64_t raw_bytes = count * static_cast<int64_t>(sizeof(Bits));
  if (std::memcmp(old_weights, new_weights, static_cast<size_t>(raw_bytes)) == 0) {
    return 0;
  }
  typename Words::Padded padded_old(old_bits, num_elements);
  typename Words::Padded padded_new(new_bits, num_elements);
  SoleThread group;
  WeightBlockEncoder encoder(group, masks_in<Format>(scratch), num_elements, scratch.coded,
                             static_cast<uint32_t>(8 * raw_bytes));
  const int64_t bytes = bytes_of_coded(
      encoder.encode(Words{{old_bits, new_bits, num_elements}, padded_old.bits, padded_new.bits}), raw_bytes);
  std::memcpy(out, bytes == raw_bytes ? new_weights : scratch.coded, static_cast<size_t>(bytes));
  return bytes;
}

template <typename Format>
bool decode_weight_block(const void* block, int64_t bytes, void* weights, int64_t count, WeightScratch& scratch) {
  using Words = VectorWords<Format>;
  using Bits = typename Format::Bits;
  const auto num_elements = static_cast<int>(count);
  auto* const bits = static_cast<Bits*>(weights);
  const int64_t raw_bytes = count * static_cast<int64_t>(sizeof(Bits));
  if (bytes == 0) {
    return true;
  }
  if (bytes == raw_bytes) {
    std::memcpy(bits, block, static_cast<size_t>(raw_bytes));
    return true;
  }
  if (bytes > raw_bytes || bytes % 2 != 0) {
    return false;
  }
  typename Words::Padded padded(bits, num_elements);
  SoleThread group;
  auto decoder = decoder_of_block(group, masks_in<Format>(scratch), num_elements, block, bytes);
  const bool decodes = decoder.decode(Words{{bits, bits, num_elements}, padded.bits, padded.bits});
  const int rest = num_elements % kWeightWordElements;
  std::copy_n(padded.bits, rest, bits + num_elements - rest);
  return decodes;
}

template <typename Format>
constexpr WeightKernels kWeightKernels = {.encode = encode_weight_block<Format>, .decode = decode_weight_block<Format>};

constexpr WeightKernelTable kWeightKernelTable = {.bfloat16 = kWeightKernels<BFloat16Weights>,
                                                  .float16 = kWeightKernels<Float16Weights>,
                                                  .float32 = kWeightKernels<Float32Weights>};

}  // namespace isthmus::kernels::ISTHMUS_KERNEL_NAMESPACE

namespace isthmus::kernels {

const WeightKernelTable& weight_kernels_of(ISTHMUS_KERNEL_NAMESPACE::Instructions /*set*/) {
  return ISTHMUS_KERNEL_NAMESPACE::kWeightKernelTable;
}

}  // namespace isthmus::kernels
