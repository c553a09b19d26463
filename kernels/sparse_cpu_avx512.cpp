#define ISTHMUS_KERNEL_NAMESPACE avx512
#include "kernels/sparse_cpu.h"
#include "kernels/sparse_cpu_loops.h"

namespace isthmus::kernels {

const SparseKernels kAvx512SparseKernels = avx512::kSparseKernels;

}  // namespace isthmus::kernels
