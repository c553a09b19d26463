#define ISTHMUS_KERNEL_NAMESPACE avx2
#include "kernels/quant/cpu.h"
#include "kernels/quant/cpu_loops.h"

namespace isthmus::kernels {

const QuantKernels kAvx2QuantKernels = avx2::kQuantKernels;

}  // namespace isthmus::kernels
