#include "kernels/sparse/cpu.h"

#include "kernels/block/instruction_set.h"

namespace isthmus::kernels {

const SparseKernels& sparse_kernels() {
  switch (instruction_set()) {
#ifdef ISTHMUS_X86_KERNELS
    case InstructionSet::kAvx512:
      return kAvx512SparseKernels;
    case InstructionSet::kAvx2:
      return kAvx2SparseKernels;
#else
    case InstructionSet::kAvx512:
    case InstructionSet::kAvx2:
#endif
    case InstructionSet::kBaseline:
      break;
  }
  return kBaselineSparseKernels;
}

}  // namespace isthmus::kernels
