// Compiled once for each instruction set, which ISTHMUS_KERNEL_NAMESPACE names.
#include "kernels/quant/cpu.h"
#include "kernels/quant/cpu_loops.h"

namespace isthmus::kernels {

const QuantKernels& quant_kernels_of(ISTHMUS_KERNEL_NAMESPACE::Instructions /*set*/) {
  return ISTHMUS_KERNEL_NAMESPACE::kQuantKernels;
}

}  // namespace isthmus::kernels
