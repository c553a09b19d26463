#include "kernels/checksum/cpu.h"

namespace isthmus::kernels {

const ChecksumKernels& checksum_kernels() {
  return with_instruction_set([](auto set) -> const ChecksumKernels& { return checksum_kernels_of(set); });
}

}  // namespace isthmus::kernels
