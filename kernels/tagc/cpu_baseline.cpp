#define ISTHMUS_KERNEL_NAMESPACE baseline
#include "kernels/tagc/cpu.h"
#include "kernels/tagc/cpu_loops.h"

namespace isthmus::kernels {

const TagcKernels kBaselineTagcKernels = baseline::kTagcKernels;

}  // namespace isthmus::kernels
