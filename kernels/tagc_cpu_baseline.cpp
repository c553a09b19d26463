#define ISTHMUS_KERNEL_NAMESPACE baseline
#include "kernels/tagc_cpu.h"
#include "kernels/tagc_cpu_loops.h"

namespace isthmus::kernels {

const TagcKernels kBaselineTagcKernels = baseline::kTagcKernels;

}  // namespace isthmus::kernels
