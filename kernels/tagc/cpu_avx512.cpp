#define ISTHMUS_KERNEL_NAMESPACE avx512
#include "kernels/tagc/cpu.h"
#include "kernels/tagc/cpu_loops.h"

namespace isthmus::kernels {

const TagcKernels kAvx512TagcKernels = avx512::kTagcKernels;

}  // namespace isthmus::kernels
