#define ISTHMUS_KERNEL_NAMESPACE avx2
#include "kernels/sparse_cpu.h"
#include "kernels/sparse_cpu_loops.h"

namespace isthmus::kernels {

const SparseKernels kAvx2SparseKernels = avx2::kSparseKernels;

}  // namespace isthmus::kernels
