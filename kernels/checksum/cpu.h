// The packets' checksum on the CPU: loops over words, for each instruction set. docs/packet_format.md defines it.
#pragma once

#include <cstdint>

#include "kernels/block/hashes.h"
#include "kernels/block/instruction_set.h"

namespace isthmus::kernels {

// Addresses need no alignment. The first word is the checksum's `place`-th.
struct ChecksumKernels {
  uint64_t (*sum)(const void* words, int64_t num_words, int64_t place);
  // The same, and copies the words. The two memories do not overlap.
  uint64_t (*copy)(const void* from, void* to, int64_t num_words, int64_t place);
};

// The loops for each instruction set that was compiled, and for the one in use.
const ChecksumKernels& checksum_kernels_of(baseline::Instructions set);
const ChecksumKernels& checksum_kernels_of(avx2::Instructions set);
const ChecksumKernels& checksum_kernels_of(avx512::Instructions set);
const ChecksumKernels& checksum_kernels();

}  // namespace isthmus::kernels

namespace isthmus {

// Sums 64-bit words, each weighted by its place, so that the checksum of a packet is the sum of its parts' checksums,
// in any order. Any damage to one half of a word changes it.
class Checksum {
 public:
  // The checksum of a part that begins `first_word` words after the header.
  explicit Checksum(int64_t first_word = 0) : place_(first_word) {}

  // Adds the next `num_bytes` of data: a multiple of 8, at any alignment.
  void add(const void* data, int64_t num_bytes) {
    const int64_t num_words = num_bytes / kernels::kChecksumWordBytes;
    sum_ += kernels::checksum_kernels().sum(data, num_words, place_);
    place_ += num_words;
  }

  // Adds the data and copies it.
  void copy(const void* from, void* to, int64_t num_bytes) {
    const int64_t num_words = num_bytes / kernels::kChecksumWordBytes;
    sum_ += kernels::checksum_kernels().copy(from, to, num_words, place_);
    place_ += num_words;
  }

  uint64_t value() const { return sum_; }

 private:
  int64_t place_;
  uint64_t sum_ = 0;
};

}  // namespace isthmus
