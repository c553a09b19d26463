#define ISTHMUS_KERNEL_NAMESPACE avx512
#include "kernels/quant_cpu.h"
#include "kernels/quant_cpu_loops.h"

namespace isthmus::kernels {

const QuantKernels kAvx512QuantKernels = avx512::kQuantKernels;

}  // namespace isthmus::kernels
