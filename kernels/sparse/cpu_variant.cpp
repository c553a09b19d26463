// Compiled once for each instruction set, which ISTHMUS_KERNEL_NAMESPACE names.
#include "kernels/sparse/cpu.h"
#include "kernels/sparse/cpu_decode.h"
#include "kernels/sparse/cpu_encode.h"

namespace isthmus::kernels {

namespace ISTHMUS_KERNEL_NAMESPACE {
constexpr SparseKernels kKernels = {
    .encode = encode_sparse,
    .decode_add = decode_add_sparse,
};
}  // namespace ISTHMUS_KERNEL_NAMESPACE

const SparseKernels& sparse_kernels_of(ISTHMUS_KERNEL_NAMESPACE::Instructions /*set*/) {
  return ISTHMUS_KERNEL_NAMESPACE::kKernels;
}

}  // namespace isthmus::kernels
