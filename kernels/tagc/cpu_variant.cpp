// Compiled once for each instruction set, which ISTHMUS_KERNEL_NAMESPACE names.
#include "kernels/tagc/cpu.h"
#include "kernels/tagc/cpu_loops.h"

namespace isthmus::kernels {

const TagcKernels& tagc_kernels_of(ISTHMUS_KERNEL_NAMESPACE::Instructions /*set*/) {
  return ISTHMUS_KERNEL_NAMESPACE::kTagcKernels;
}

}  // namespace isthmus::kernels
