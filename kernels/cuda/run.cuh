// Runs the passes of a job on a CUDA stream: for kernels/<codec>/cuda.cu, which includes the codec's sequence.h, too.
#pragma once

#define ISTHMUS_KERNEL_NAMESPACE cuda

#include "kernels/cuda/executor.cuh"
#include "kernels/cuda/run.h"

namespace isthmus::kernels {

// Finds the run_passes() of the job by the executor's namespace.
template <typename Job>
void cuda_run(const Job& job, void* stream) {
  cuda::CudaExecutor executor(static_cast<cudaStream_t>(stream));
  run_passes(executor, job);
}

}  // namespace isthmus::kernels
