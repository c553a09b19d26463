#include "kernels/cuda/executor.cuh"
#include "kernels/none/run_passes.h"

namespace isthmus::kernels {

template void cuda_run(const NoneEncodeJob& job, void* stream);
template void cuda_run(const NoneDecodeJob& job, void* stream);

}  // namespace isthmus::kernels
