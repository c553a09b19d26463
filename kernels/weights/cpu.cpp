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

// A group of one thread. See kernels/block/group.h for what the members mean.
struct SoleThread {
  WeightScratch* scratch;

  static constexpr int64_t thread() { return 0; }
  static constexpr int64_t size() { return 1; }
  static void sync() {}
  static bool any(bool condition) { return condition; }
  static uint32_t exclusive_sum(uint32_t value, uint32_t& total) {
    total = value;
    return 0;
  }
  static void fetch_or(uint64_t& word, uint64_t operand) { word |= operand; }
};

// One bit of each of 64 bytes.
inline uint64_t bit_of_each(const uint8_t* bytes, int bit) {
#if defined(ISTHMUS_VECTOR_MASKS) && defined(__AVX512BW__)
  return _mm512_test_epi8_mask(_mm512_loadu_si512(bytes), _mm512_set1_epi8(static_cast<char>(1U << bit)));
#elif defined(ISTHMUS_VECTOR_MASKS) && defined(__AVX2__)
  const auto half = [&](int i) {
    const __m256i found = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(bytes + i));
    return uint64_t{static_cast<uint32_t>(_mm256_movemask_epi8(_mm256_sll_epi16(found, _mm_cvtsi32_si128(7 - bit))))};
  };
  return half(0) | half(32) << 32;
#else
  uint64_t mask = 0;
  for (int i = 0; i < 8; ++i) {
    uint64_t eight = 0;
    std::memcpy(&eight, bytes + 8 * i, sizeof(eight));
    mask |= (eight >> bit & 0x0101010101010101) * 0x0102040810204080 >> 56 << (8 * i);
  }
  return mask;
#endif
}

// Lists places of ones in a string, behind a -1, and returns how many they are. Eight more may be written.
inline int list_ones(const uint64_t* string, uint32_t num_bits, uint16_t* places) {
  constexpr uint64_t kLast = uint64_t{1} << 63;
  const uint16_t* const begin = places;
  *places++ = 0xffff;
  for (uint32_t first = 0; first < num_bits; first += 64) {
    uint64_t word = string[first / 64];
    const int count = count_ones(word);
    for (int i = 0; i < count; i += 8) {  // eight at once: fewer branches that nobody can predict
      for (int j = i; j < i + 8; ++j) {
        places[j] = static_cast<uint16_t>(first + static_cast<uint32_t>(lowest_one(word | kLast)));
        word &= word - 1;
      }
    }
    places += count;
  }
  return static_cast<int>(places - begin) - 1;
}

// The lower bits of the first of four numbers of 16 bits.
inline uint64_t lower_bits_of_each(uint32_t low_bits, int numbers) {
  return lower_bits(static_cast<int>(low_bits)) * 0x0001000100010001 & lower_bits(16 * numbers);
}

// As any group does it (gaps.h), but with lists of ones, and bytes in place of bits, so that no one waits for the one
// before.
inline void encode_gaps(SoleThread& group, const uint64_t* string, uint32_t num_bits, uint32_t low_bits, BitsOut& out) {
  WeightScratch& lists = *group.scratch;
  const int count = list_ones(string, num_bits, lists.places);
  for (int i = 0; i < count + 4; ++i) {
    lists.gaps[i] = static_cast<uint16_t>(lists.places[i + 1] - lists.places[i] - 1);
  }
  std::memset(lists.bytes, 0, num_bits + 64);
  uint32_t unary = 0;
  for (int i = 0; i < count; ++i) {
    unary += lists.gaps[i] >> low_bits;
    lists.bytes[unary++] = 1;
  }
  out.put(group, unary, bits_of_length(num_bits));
  const uint32_t lows = out.position + unary;
  const bool has_room = lows + static_cast<uint32_t>(count) * low_bits <= out.most;
  BitWriter writer(group, out.words, out.position);
  for (uint32_t first = 0; first < unary; first += 64) {
    writer.put(bit_of_each(lists.bytes + first, 0), unary - first < 64 ? static_cast<int>(unary - first) : 64);
  }
  for (int i = 0; i < count && has_room; i += 4) {
    uint64_t four = 0;
    std::memcpy(&four, lists.gaps + i, sizeof(four));
    const int left = count - i < 4 ? count - i : 4;
    writer.put(gathered(four, lower_bits_of_each(low_bits, left)), static_cast<int>(low_bits) * left);
  }
  writer.flush();
  out.position = lows + static_cast<uint32_t>(count) * low_bits;
}

inline bool decode_gaps(SoleThread& group, BitsIn& in, uint32_t num_bits, uint32_t low_bits, uint64_t* string) {
  WeightScratch& lists = *group.scratch;
  const auto unary = static_cast<uint32_t>(in.take(bits_of_length(num_bits)));
  if (unary > num_bits || in.position + unary > in.end) {
    return false;
  }
  for (uint32_t first = 0; first < unary; first += 64) {
    string[first / 64] = in.take(unary - first < 64 ? static_cast<int>(unary - first) : 64);
  }
  const int count = list_ones(string, unary, lists.places);
  const uint32_t lows = in.position;
  in.position += static_cast<uint32_t>(count) * low_bits;
  if (in.position > in.end) {
    return false;
  }
  for (int i = 0; i < count; i += 4) {
    const uint64_t four = spread(in.from(lows + static_cast<uint32_t>(i) * low_bits), lower_bits_of_each(low_bits, 4));
    std::memcpy(lists.gaps + i, &four, sizeof(four));
  }
  uint32_t end = (static_cast<uint32_t>(lists.places[count] + 1 - count) << low_bits) + static_cast<uint32_t>(count);
  for (int i = 0; i < count; ++i) {
    end += lists.gaps[i];
    lists.gaps[i] += static_cast<uint16_t>((lists.places[i + 1] - lists.places[i] - 1) << low_bits);
  }
  if (count > 0 && end > num_bits) {
    return false;
  }
  std::memset(lists.bytes, 0, num_bits + 64);
  end = 0;
  for (int i = 0; i < count; ++i) {
    end += lists.gaps[i];
    lists.bytes[end++] = 1;
  }
  for (uint32_t first = 0; first < num_bits; first += 64) {
    string[first / 64] = bit_of_each(lists.bytes + first, 0);
  }
  return true;
}

// Words are moved in vectors. The last ones of a block are padded first.
template <typename Format>
struct VectorWords {
  using Bits = typename Format::Bits;
  using Moves = WeightMoves<Format>;
  static constexpr int kTop = Format::kBits - 1;

  const Bits* old_bits;
  Bits* new_bits;
  int num_elements;
  Bits* padded_old;
  Bits* padded_new;
  Moves* moves;

  // A block's last elements, too few for a word; what is missing is +0.
  struct Padded {
    Bits bits[kWeightWordElements] = {};
    Padded(const Bits* all, int num_elements) {
      std::copy_n(all + num_elements - num_elements % kWeightWordElements, num_elements % kWeightWordElements, bits);
    }
  };

  struct Values {
    const Moves* moves;
    int word;

    uint64_t signs(uint64_t changed) const { return gathered(moves->is_down[word], changed); }
    uint64_t bits(int place, uint64_t longer) const { return gathered(moves->bit[place][word], longer); }
  };
  Values values(int word) const { return {moves, word}; }

  void split_exponents(int word, WeightMasks<Format>& masks) const {
    const Bits* const before = old_word(word);
    alignas(64) uint8_t bytes[kWeightWordElements];
    for (int i = 0; i < kWeightWordElements; ++i) {
      bytes[i] = static_cast<uint8_t>(before[i] >> Format::kMantissaBits);
    }
    for (int bit = 0; bit < kWeightClassBits; ++bit) {
      masks.exponent[bit][word] = bit_of_each(bytes, bit);
    }
  }

  void split_distances(int word, WeightMasks<Format>& masks) const {
    const Bits* const before = old_word(word);
    const Bits* const now = new_word(word);
    alignas(64) Bits distance[kWeightWordElements];
    alignas(64) uint8_t bytes[kWeightWordElements];
    if (std::memcmp(before, now, sizeof(distance)) == 0) {
      return;
    }
    Bits any = 0;
    for (int i = 0; i < kWeightWordElements; ++i) {
      const auto step = static_cast<Bits>(ordered_weight(now[i]) - ordered_weight(before[i]));
      const auto down = static_cast<Bits>(step >> kTop);
      distance[i] = static_cast<Bits>((step ^ (0 - down)) + down);
      bytes[i] = static_cast<uint8_t>(down);
      any |= distance[i];
    }
    moves->is_down[word] = bit_of_each(bytes, 0);
    uint64_t longer = 0;
    const int top = highest_one(any);
    for (int level = top; level >= 0; --level) {
      if (level == top || level % 8 == 7) {
        for (int i = 0; i < kWeightWordElements; ++i) {
          bytes[i] = static_cast<uint8_t>(distance[i] >> (level / 8 * 8));
        }
      }
      moves->bit[level][word] = bit_of_each(bytes, level % 8);
      longer |= moves->bit[level][word];
      masks.level[level][word] = longer;
    }
  }

  void move(int word, const WeightMasks<Format>& masks, int num_levels, uint64_t signs) const {
    Bits* const elements = new_word(word);
    uint64_t bits[Format::kBits];
    for (int level = 0; level < num_levels; ++level) {
      bits[level] = masks.level[level][word];
    }
    for (int first = 0; first < kWeightWordElements; first += kLanes) {
      Vector distance{};
      for (int level = 0; level < num_levels; ++level) {
        const auto bit = static_cast<Bits>(1U << level);
        distance |= where(bits[level] >> first) & bit;
      }
      const Vector down = where(signs >> first);
      Vector old;
      std::memcpy(&old, elements + first, sizeof(old));
      const Vector moved = ordered(ordered(old) + ((distance ^ down) - down));
      std::memcpy(elements + first, &moved, sizeof(moved));
    }
  }

 private:
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

  bool is_whole(int word) const { return (word + 1) * kWeightWordElements <= num_elements; }
  const Bits* old_word(int word) const { return is_whole(word) ? old_bits + word * kWeightWordElements : padded_old; }
  Bits* new_word(int word) const { return is_whole(word) ? new_bits + word * kWeightWordElements : padded_new; }
};

template <typename Format>
WeightMasks<Format>& masks_in(WeightScratch& scratch) {
  return *reinterpret_cast<WeightMasks<Format>*>(scratch.masks);
}

template <typename Format>
WeightMoves<Format>& moves_in(WeightScratch& scratch) {
  return *reinterpret_cast<WeightMoves<Format>*>(scratch.moves);
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
  SoleThread group{&scratch};
  WeightBlockEncoder encoder(group, masks_in<Format>(scratch), num_elements, scratch.coded,
                             static_cast<uint32_t>(8 * raw_bytes));
  const int64_t bytes = bytes_of_coded(encoder.encode(Words{old_bits, new_bits, num_elements, padded_old.bits,
                                                            padded_new.bits, &moves_in<Format>(scratch)}),
                                       raw_bytes);
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
  SoleThread group{&scratch};
  auto decoder = decoder_of_block(group, masks_in<Format>(scratch), num_elements, block, bytes);
  const bool decodes = decoder.decode(Words{bits, bits, num_elements, padded.bits, padded.bits, nullptr});
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
