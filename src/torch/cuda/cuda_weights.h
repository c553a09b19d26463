// Weights in the memory of a GPU that are coded outside of any group. This header includes none of CUDA's.
#pragma once

#include <ATen/core/Tensor.h>

#include <functional>
#include <memory>

#include "kernels/weights/weight_coder.h"

namespace isthmus::torch_backend {

// Codes weights of tensors on one device, for one thread and one call.
struct TensorWeights {
  std::shared_ptr<WeightCoder> coder;
  Stream stream;
  std::function<void()> throw_if_faulted;  // throws the PacketError of what has been decoded, for which it waits
};

// On the stream that is current now. Throws Error if isthmus was built without CUDA.
TensorWeights make_cuda_weights(const at::Device& device);

}  // namespace isthmus::torch_backend
