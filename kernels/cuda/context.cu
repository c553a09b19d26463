#define ISTHMUS_KERNEL_NAMESPACE cuda

#include "kernels/cuda/executor.cuh"
#include "kernels/cuda/run.h"

namespace isthmus::kernels {

namespace {

__global__ void set_context(DeviceContext* context, DeviceContext value) { *context = value; }
__global__ void count_step(DeviceContext* context) { ++context->step; }

}  // namespace

void cuda_set_context(DeviceContext* context, DeviceContext value, void* stream) {
  set_context<<<1, 1, 0, static_cast<cudaStream_t>(stream)>>>(context, value);
  cuda::check_cuda(cudaGetLastError(), "kernel launch");
}

void cuda_next_step(DeviceContext* context, void* stream) {
  count_step<<<1, 1, 0, static_cast<cudaStream_t>(stream)>>>(context);
  cuda::check_cuda(cudaGetLastError(), "kernel launch");
}

}  // namespace isthmus::kernels
