#define ISTHMUS_KERNEL_NAMESPACE cuda

#include "kernels/cuda/executor.cuh"
#include "kernels/values/cuda.h"
#include "kernels/values/sequence.h"

namespace isthmus::kernels {

void cuda_convert(ConstBuffer in, Buffer out, void* stream) {
  cuda::CudaExecutor executor(static_cast<cudaStream_t>(stream));
  cuda::convert(executor, in, out);
}

void cuda_convert_scaled(ConstBuffer in, double scale, Buffer out, void* stream) {
  cuda::CudaExecutor executor(static_cast<cudaStream_t>(stream));
  cuda::convert_scaled(executor, in, scale, out);
}

void cuda_multiply(Buffer values, double factor, void* stream) {
  cuda::CudaExecutor executor(static_cast<cudaStream_t>(stream));
  cuda::multiply(executor, values, factor);
}

void cuda_add(ConstBuffer values, Buffer sums, void* stream) {
  cuda::CudaExecutor executor(static_cast<cudaStream_t>(stream));
  cuda::add(executor, values, sums);
}

void cuda_add_squared_error(const SquaredErrorJob& job, void* stream) {
  cuda::CudaExecutor executor(static_cast<cudaStream_t>(stream));
  cuda::add_squared_error(executor, job);
}

void cuda_guard_residual(ResidualGuard* guard, Buffer residual, DeviceCounts* counts, void* stream) {
  cuda::CudaExecutor executor(static_cast<cudaStream_t>(stream));
  cuda::guard_residual(executor, guard, residual, counts);
}

}  // namespace isthmus::kernels
