#include "kernels/cuda/executor.cuh"
#include "kernels/elementwise/run_passes.h"

namespace isthmus::kernels {

namespace {

constexpr int kContextThreads = 32;

__global__ void set_contexts(DeviceContext* contexts, int count, DeviceContext value) {
  for (int i = threadIdx.x; i < count; i += blockDim.x) {
    contexts[i] = value;
  }
}
__global__ void count_step(DeviceContext* context) { ++context->step; }

}  // namespace

void cuda_set_contexts(DeviceContext* contexts, int count, DeviceContext value, void* stream) {
  set_contexts<<<1, kContextThreads, 0, static_cast<cudaStream_t>(stream)>>>(contexts, count, value);
  cuda::check_cuda(cudaGetLastError(), "kernel launch");
}

void cuda_next_step(DeviceContext* context, void* stream) {
  count_step<<<1, 1, 0, static_cast<cudaStream_t>(stream)>>>(context);
  cuda::check_cuda(cudaGetLastError(), "kernel launch");
}

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

void cuda_drop_residual_after_spike(Magnitudes* magnitudes, Buffer residual, DeviceCounts* counts, void* stream) {
  cuda::CudaExecutor executor(static_cast<cudaStream_t>(stream));
  cuda::drop_residual_after_spike(executor, magnitudes, residual, counts);
}

}  // namespace isthmus::kernels
