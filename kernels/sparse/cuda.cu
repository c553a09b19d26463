#define ISTHMUS_KERNEL_NAMESPACE cuda

#include "kernels/cuda/codecs.h"
#include "kernels/cuda/executor.cuh"
#include "kernels/sparse/sequence.h"

namespace isthmus::kernels {

void cuda_encode_sparse(const SparseEncodeJob& job, void* stream) {
  cuda::CudaExecutor executor(static_cast<cudaStream_t>(stream));
  cuda::encode_sparse(executor, job);
}

void cuda_decode_sparse(const SparseDecodeJob& job, void* stream) {
  cuda::CudaExecutor executor(static_cast<cudaStream_t>(stream));
  cuda::decode_sparse(executor, job);
}

}  // namespace isthmus::kernels
