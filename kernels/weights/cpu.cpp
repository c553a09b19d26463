#include "kernels/weights/cpu.h"

namespace isthmus::kernels {

const WeightKernels& weight_kernels(DataType dtype) {
  const auto& table = with_instruction_set([](auto set) -> const WeightKernelTable& { return weight_kernels_of(set); });
  if (dtype == DataType::kFloat16) {
    return table.float16;
  }
  return dtype == DataType::kBFloat16 ? table.bfloat16 : table.float32;
}

}  // namespace isthmus::kernels
