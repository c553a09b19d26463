#include "torch/cuda/cuda_weights.h"

#include <ATen/ops/from_blob.h>
#include <c10/cuda/CUDAStream.h>

#include "codec/weights/device.h"
#include "cuda/cuda_launcher.h"

namespace isthmus::torch_backend {
namespace {

class CudaWeights final : public TensorWeights {
 public:
  explicit CudaWeights(const at::Device& device)
      : stream_{c10::cuda::getCurrentCUDAStream(device.index()).stream()},
        faults_(bytes_of(no_faults_).to(device)),
        launcher_(device.index(), static_cast<MappedFaults*>(faults_.data_ptr())),
        coder_(make_weight_coder_of_gpu(launcher_)) {}

  WeightCoder& coder() override { return *coder_; }
  Stream stream() override { return stream_; }
  void throw_if_faulted() override {
    MappedFaults found;
    bytes_of(found).copy_(faults_);
    throw_if_any_reported(found.of_weights);
  }

 private:
  static at::Tensor bytes_of(MappedFaults& faults) { return at::from_blob(&faults, {sizeof(faults)}, at::kByte); }

  Stream stream_;
  MappedFaults no_faults_;
  at::Tensor faults_;
  CudaLauncher launcher_;
  std::unique_ptr<WeightCoder> coder_;
};

}  // namespace

std::unique_ptr<TensorWeights> make_cuda_weights(const at::Device& device) {
  return std::make_unique<CudaWeights>(device);
}

}  // namespace isthmus::torch_backend
