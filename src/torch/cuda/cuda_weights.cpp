#include "torch/cuda/cuda_weights.h"

#include <ATen/ops/from_blob.h>
#include <c10/cuda/CUDAStream.h>

#include "cuda/cuda_launcher.h"
#include "kernels/weights/weight_coder.h"

namespace isthmus::torch_backend {
namespace {

at::Tensor bytes_of(DeviceFaults& faults) { return at::from_blob(&faults, {sizeof(faults)}, at::kByte); }

struct CudaWeights {
  explicit CudaWeights(const at::Device& device)
      : faults(bytes_of(no_faults).to(device)),
        launcher(device.index(), {}, address(), address()),
        coder(make_weight_coder_of_gpu(launcher)) {}

  kernels::DeviceFault* address() const { return static_cast<kernels::DeviceFault*>(faults.data_ptr()); }

  DeviceFaults no_faults;
  at::Tensor faults;
  CudaLauncher launcher;
  std::unique_ptr<WeightCoder> coder;
};

}  // namespace

TensorWeights make_cuda_weights(const at::Device& device) {
  const auto weights = std::make_shared<CudaWeights>(device);
  return {std::shared_ptr<WeightCoder>(weights, weights->coder.get()),
          {c10::cuda::getCurrentCUDAStream(device.index()).stream()},
          [weights] {
            DeviceFaults found;
            bytes_of(found).copy_(weights->faults);
            throw_if_any_reported(found.back());
          }};
}

}  // namespace isthmus::torch_backend
