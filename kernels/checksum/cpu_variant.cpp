// Compiled once for each instruction set, which ISTHMUS_KERNEL_NAMESPACE names.
#include "kernels/checksum/cpu.h"
#include "kernels/checksum/cpu_loops.h"

namespace isthmus::kernels {

namespace ISTHMUS_KERNEL_NAMESPACE {
constexpr ChecksumKernels kChecksumKernels = {.sum = sum_words, .copy = copy_words};
}  // namespace ISTHMUS_KERNEL_NAMESPACE

const ChecksumKernels& checksum_kernels_of(ISTHMUS_KERNEL_NAMESPACE::Instructions /*set*/) {
  return ISTHMUS_KERNEL_NAMESPACE::kChecksumKernels;
}

}  // namespace isthmus::kernels
