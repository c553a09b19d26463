#define ISTHMUS_KERNEL_NAMESPACE avx2
#include "kernels/tagc_cpu.h"
#include "kernels/tagc_cpu_loops.h"

namespace isthmus::kernels {

const TagcKernels kAvx2TagcKernels = avx2::kTagcKernels;

}  // namespace isthmus::kernels
