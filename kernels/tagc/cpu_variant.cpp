// Compiled once for each instruction set, which ISTHMUS_KERNEL_NAMESPACE names.
#include "kernels/tagc/cpu.h"
#include "kernels/tagc/cpu_loops.h"

namespace isthmus::kernels {

namespace ISTHMUS_KERNEL_NAMESPACE {
constexpr TagcKernels kKernels = {
    .hash_blocks = hash_blocks,
    .sample_bound = sample_bound,
    .select = select,
    .peel_keys = peel_keys,
    .hold_back = hold_back,
    .insert_xor = insert_xor,
    .insert_sum = insert_sum,
    .peel_xor = peel_xor,
    .peel_sum = peel_sum,
    .estimate = estimate,
};
}  // namespace ISTHMUS_KERNEL_NAMESPACE

const TagcKernels& tagc_kernels_of(ISTHMUS_KERNEL_NAMESPACE::Instructions /*set*/) {
  return ISTHMUS_KERNEL_NAMESPACE::kKernels;
}

}  // namespace isthmus::kernels
