#define ISTHMUS_KERNEL_NAMESPACE cuda

#include "kernels/cuda/codecs.h"
#include "kernels/cuda/executor.cuh"
#include "kernels/quant/sequence.h"

namespace isthmus::kernels {

void cuda_encode_quant(const QuantEncodeJob& job, void* stream) {
  cuda::CudaExecutor executor(static_cast<cudaStream_t>(stream));
  cuda::encode_quant(executor, job);
}

void cuda_decode_quant(const QuantDecodeJob& job, void* stream) {
  cuda::CudaExecutor executor(static_cast<cudaStream_t>(stream));
  cuda::decode_quant(executor, job);
}

}  // namespace isthmus::kernels
