#include "kernels/cuda/executor.cuh"
#include "kernels/weights/run_passes.h"

namespace isthmus::kernels {

template void cuda_run(const WeightEncodeJob& job, void* stream);
template void cuda_run(const WeightDecodeJob& job, void* stream);

}  // namespace isthmus::kernels
