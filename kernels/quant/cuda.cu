#include "kernels/cuda/executor.cuh"
#include "kernels/quant/run_passes.h"

namespace isthmus::kernels {

template void cuda_run(const QuantEncodeJob& job, void* stream);
template void cuda_run(const QuantDecodeJob& job, void* stream);

}  // namespace isthmus::kernels
