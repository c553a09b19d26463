#define ISTHMUS_KERNEL_NAMESPACE avx512
#include "kernels/sparse/cpu.h"
#include "kernels/sparse/cpu_loops.h"

namespace isthmus::kernels {

const SparseKernels kAvx512SparseKernels = avx512::kSparseKernels;

}  // namespace isthmus::kernels
