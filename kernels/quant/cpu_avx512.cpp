#define ISTHMUS_KERNEL_NAMESPACE avx512
#include "kernels/quant/cpu.h"
#include "kernels/quant/cpu_loops.h"

namespace isthmus::kernels {

const QuantKernels kAvx512QuantKernels = avx512::kQuantKernels;

}  // namespace isthmus::kernels
