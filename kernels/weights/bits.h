// Strings of bits in words of 64, the lowest bit first.
#pragma once

#include <cstdint>
#include <cstring>

#include "kernels/block/passes.h"

// Neither nvcc nor clang-tidy knows these.
#if defined(__BMI2__) && !defined(__clang_analyzer__) && !defined(__CUDA_ARCH__)
#define ISTHMUS_BMI2
#include <immintrin.h>
#endif

namespace isthmus::kernels::ISTHMUS_KERNEL_NAMESPACE {

ISTHMUS_DEVICE int count_ones(uint64_t word) {
#ifdef __CUDA_ARCH__
  return __popcll(word);
#else
  return __builtin_popcountll(word);
#endif
}
// Of a word that is not 0.
ISTHMUS_DEVICE int highest_one(uint64_t word) {
#ifdef __CUDA_ARCH__
  return 63 - __clzll(static_cast<long long>(word));
#else
  return 63 - __builtin_clzll(word);
#endif
}
ISTHMUS_DEVICE uint64_t lower_bits(int count) {
#ifdef ISTHMUS_BMI2
  return _bzhi_u64(~uint64_t{0}, static_cast<uint32_t>(count));
#else
  return count == 0 ? 0 : ~uint64_t{0} >> (64 - count);
#endif
}

// The bits of a word where `mask` has ones, side by side; and as many of the lowest bits back to there.
ISTHMUS_DEVICE uint64_t gathered(uint64_t word, uint64_t mask) {
#ifdef ISTHMUS_BMI2
  return _pext_u64(word, mask);
#else
  uint64_t bits = 0;
  for_each_bit(word & mask, 0, [&](int place) { bits |= uint64_t{1} << count_ones(mask & lower_bits(place)); });
  return bits;
#endif
}
ISTHMUS_DEVICE uint64_t spread(uint64_t bits, uint64_t mask) {
#ifdef ISTHMUS_BMI2
  return _pdep_u64(bits, mask);
#else
  uint64_t word = 0;
  bits &= lower_bits(count_ones(mask));  // so that the loop ends with the last one
  for (; (bits != 0) & (mask != 0); mask &= mask - 1, bits >>= 1) {
    word |= (bits & 1) != 0 ? mask & (0 - mask) : 0;
  }
  return word;
#endif
}

// One thread's part of a string, from a position on. Other threads may write to the same words, which begin as zeros.
template <typename Group>
class BitWriter {
 public:
  ISTHMUS_DEVICE BitWriter(Group& group, uint64_t* words, uint32_t position)
      : group_(&group), word_(words + position / 64), used_(static_cast<int>(position % 64)) {
    pending_ = group.size() == 1 && used_ > 0 ? *word_ : 0;
  }

  // At most 64 bits; none above them is set.
  ISTHMUS_DEVICE void put(uint64_t bits, int count) {
    pending_ |= bits << used_;
    const bool is_full = used_ + count >= 64;
    const uint64_t rest = bits >> 1 >> (63 - used_);
    if (group_->size() == 1) {
      *word_ = pending_;  // without a branch
    } else if (is_full) {
      flush();
    }
    pending_ = is_full ? rest : pending_;
    word_ += is_full ? 1 : 0;
    used_ = (used_ + count) % 64;
  }
  ISTHMUS_DEVICE void flush() {
    if (pending_ != 0) {
      group_->fetch_or(*word_, pending_);
    }
  }

 private:
  Group* group_;
  uint64_t* word_;
  uint64_t pending_;
  int used_;
};

// A string that is read at any position. The word behind the one of a position may be read.
struct BitReader {
  const uint64_t* words;

  // At most 64 bits. Those above are anything.
  ISTHMUS_DEVICE uint64_t peek(uint32_t position, int count) const {
#ifdef ISTHMUS_BMI2
    const auto* bytes = reinterpret_cast<const uint8_t*>(words) + position / 8;
    const auto shift = static_cast<int>(position % 8);
    uint64_t bits = 0;
    std::memcpy(&bits, bytes, sizeof(bits));
    bits >>= shift;
    return count <= 57 ? bits : bits | uint64_t{bytes[8]} << 1 << (63 - shift);
#else
    static_cast<void>(count);
    const uint64_t* word = words + position / 64;
    const auto shift = static_cast<int>(position % 64);
    return word[0] >> shift | word[1] << 1 << (63 - shift);
#endif
  }
  ISTHMUS_DEVICE uint64_t get(uint32_t position, int count) const { return peek(position, count) & lower_bits(count); }
};

}  // namespace isthmus::kernels::ISTHMUS_KERNEL_NAMESPACE
