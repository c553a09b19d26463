#include "kernels/quant/cpu.h"

#include "kernels/block/instruction_set.h"

namespace isthmus::kernels {

const QuantKernels& quant_kernels() {
  switch (instruction_set()) {
#ifdef ISTHMUS_X86_KERNELS
    case InstructionSet::kAvx512:
      return kAvx512QuantKernels;
    case InstructionSet::kAvx2:
      return kAvx2QuantKernels;
#else
    case InstructionSet::kAvx512:
    case InstructionSet::kAvx2:
#endif
    case InstructionSet::kBaseline:
      break;
  }
  return kBaselineQuantKernels;
}

}  // namespace isthmus::kernels
