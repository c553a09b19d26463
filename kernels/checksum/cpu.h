// The packets' checksum on the CPU: loops over words, for each instruction set.
#pragma once

#include <cstdint>

#include "kernels/block/instruction_set.h"

namespace isthmus::kernels {

// Addresses need no alignment. The first word is the checksum's `place`-th.
struct ChecksumKernels {
  uint64_t (*sum)(const void* words, int64_t num_words, int64_t place);
  // The same, and copies the words. The two memories do not overlap.
  uint64_t (*copy)(const void* from, void* to, int64_t num_words, int64_t place);
};

// The loops for each instruction set that this build has, and for that in use.
const ChecksumKernels& checksum_kernels_of(baseline::Instructions set);
const ChecksumKernels& checksum_kernels_of(avx2::Instructions set);
const ChecksumKernels& checksum_kernels_of(avx512::Instructions set);
inline const ChecksumKernels& checksum_kernels() {
  return with_instruction_set([](auto set) -> const ChecksumKernels& { return checksum_kernels_of(set); });
}

}  // namespace isthmus::kernels
