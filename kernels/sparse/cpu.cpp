#include "kernels/sparse/cpu.h"

namespace isthmus::kernels {

const SparseKernels& sparse_kernels() {
  return with_instruction_set([](auto set) -> const SparseKernels& { return sparse_kernels_of(set); });
}

}  // namespace isthmus::kernels
