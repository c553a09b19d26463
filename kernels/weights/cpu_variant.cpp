// Compiled once for each instruction set, which ISTHMUS_KERNEL_NAMESPACE names.
#include "kernels/weights/cpu.h"
#include "kernels/weights/cpu_loops.h"

namespace isthmus::kernels {

namespace ISTHMUS_KERNEL_NAMESPACE {

template <typename Format>
constexpr WeightKernels kWeightKernels = {.encode = encode_weight_block<Format>, .decode = decode_weight_block<Format>};

constexpr WeightKernelTable kWeightKernelTable = {.bfloat16 = kWeightKernels<BFloat16Weights>,
                                                  .float16 = kWeightKernels<Float16Weights>,
                                                  .float32 = kWeightKernels<Float32Weights>};
}  // namespace ISTHMUS_KERNEL_NAMESPACE

const WeightKernelTable& weight_kernels_of(ISTHMUS_KERNEL_NAMESPACE::Instructions /*set*/) {
  return ISTHMUS_KERNEL_NAMESPACE::kWeightKernelTable;
}

}  // namespace isthmus::kernels
