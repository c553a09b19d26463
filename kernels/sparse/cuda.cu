#include "kernels/cuda/run.cuh"
#include "kernels/sparse/sequence.h"

namespace isthmus::kernels {

template void cuda_run(const SparseEncodeJob& job, void* stream);
template void cuda_run(const SparseDecodeJob& job, void* stream);

}  // namespace isthmus::kernels
