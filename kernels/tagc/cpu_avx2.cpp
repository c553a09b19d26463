#define ISTHMUS_KERNEL_NAMESPACE avx2
#include "kernels/tagc/cpu.h"
#include "kernels/tagc/cpu_loops.h"

namespace isthmus::kernels {

const TagcKernels kAvx2TagcKernels = avx2::kTagcKernels;

}  // namespace isthmus::kernels
