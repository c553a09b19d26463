#include "kernels/tagc/cpu.h"

#include <algorithm>

namespace isthmus::kernels {

int64_t selection_capacity(const TagcShape& shape, int64_t keep) {
  constexpr int64_t kSampleElements = 65536;  // the least that sample_bound() needs
  return std::min(shape.num_elements, keep + keep / 4 + kSampleElements);
}

const TagcKernels& tagc_kernels() {
  return with_instruction_set([](auto set) -> const TagcKernels& { return tagc_kernels_of(set); });
}

}  // namespace isthmus::kernels
