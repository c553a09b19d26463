#define ISTHMUS_KERNEL_NAMESPACE avx2
#include "kernels/sparse/cpu.h"
#include "kernels/sparse/cpu_loops.h"

namespace isthmus::kernels {

const SparseKernels kAvx2SparseKernels = avx2::kSparseKernels;

}  // namespace isthmus::kernels
