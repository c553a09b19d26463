#define ISTHMUS_KERNEL_NAMESPACE baseline
#include "kernels/sparse/cpu.h"
#include "kernels/sparse/cpu_loops.h"

namespace isthmus::kernels {

const SparseKernels kBaselineSparseKernels = baseline::kSparseKernels;

}  // namespace isthmus::kernels
