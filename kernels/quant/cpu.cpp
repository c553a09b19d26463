#include "kernels/quant/cpu.h"

namespace isthmus::kernels {

const QuantKernels& quant_kernels() {
  return with_instruction_set([](auto set) -> const QuantKernels& { return quant_kernels_of(set); });
}

}  // namespace isthmus::kernels
