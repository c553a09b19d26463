// Compiled once for each instruction set, which ISTHMUS_KERNEL_NAMESPACE names.
#include "kernels/sparse/cpu.h"
#include "kernels/sparse/cpu_loops.h"

namespace isthmus::kernels {

const SparseKernels& sparse_kernels_of(ISTHMUS_KERNEL_NAMESPACE::Instructions /*set*/) {
  return ISTHMUS_KERNEL_NAMESPACE::kSparseKernels;
}

}  // namespace isthmus::kernels
