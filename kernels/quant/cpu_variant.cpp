// Compiled once for each instruction set, which ISTHMUS_KERNEL_NAMESPACE names.
#include "kernels/quant/cpu.h"
#include "kernels/quant/cpu_loops.h"

namespace isthmus::kernels {

namespace ISTHMUS_KERNEL_NAMESPACE {
constexpr QuantKernels kKernels = {.encode = encode, .decode_add = decode_add};
}  // namespace ISTHMUS_KERNEL_NAMESPACE

const QuantKernels& quant_kernels_of(ISTHMUS_KERNEL_NAMESPACE::Instructions /*set*/) {
  return ISTHMUS_KERNEL_NAMESPACE::kKernels;
}

}  // namespace isthmus::kernels
