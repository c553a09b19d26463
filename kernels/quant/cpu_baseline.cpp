#define ISTHMUS_KERNEL_NAMESPACE baseline
#include "kernels/quant/cpu.h"
#include "kernels/quant/cpu_loops.h"

namespace isthmus::kernels {

const QuantKernels kBaselineQuantKernels = baseline::kQuantKernels;

}  // namespace isthmus::kernels
