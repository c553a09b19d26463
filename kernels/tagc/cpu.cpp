#include "kernels/tagc/cpu.h"

#include <algorithm>

#include "kernels/block/instruction_set.h"

namespace isthmus::kernels {

int64_t selection_capacity(const TagcShape& shape, int64_t keep) {
  constexpr int64_t kSampleElements = 65536;  // the least that sample_bound() needs
  return std::min(shape.num_elements, keep + keep / 4 + kSampleElements);
}

const TagcKernels& tagc_kernels() {
  switch (instruction_set()) {
#ifdef ISTHMUS_X86_KERNELS
    case InstructionSet::kAvx512:
      return kAvx512TagcKernels;
    case InstructionSet::kAvx2:
      return kAvx2TagcKernels;
#else
    case InstructionSet::kAvx512:
    case InstructionSet::kAvx2:
#endif
    case InstructionSet::kBaseline:
      break;
  }
  return kBaselineTagcKernels;
}

}  // namespace isthmus::kernels
