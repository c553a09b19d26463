#define ISTHMUS_KERNEL_NAMESPACE cuda

#include "kernels/cuda/codecs.h"
#include "kernels/cuda/executor.cuh"
#include "kernels/none/sequence.h"

namespace isthmus::kernels {

void cuda_encode_none(const NoneEncodeJob& job, void* stream) {
  cuda::CudaExecutor executor(static_cast<cudaStream_t>(stream));
  cuda::encode_none(executor, job);
}

void cuda_decode_none(const NoneDecodeJob& job, void* stream) {
  cuda::CudaExecutor executor(static_cast<cudaStream_t>(stream));
  cuda::decode_none(executor, job);
}

}  // namespace isthmus::kernels
