// Weights in the memory of a GPU that are coded outside of any group. This header includes none of CUDA's.
#pragma once

#include <ATen/core/Tensor.h>

#include <memory>

#include "codec/weights/weight_coder.h"

namespace isthmus::torch_backend {

// Codes weights of tensors on one device, for one thread and one call.
class TensorWeights {
 public:
  virtual ~TensorWeights() = default;

  virtual WeightCoder& coder() = 0;
  virtual Stream stream() = 0;
  // Throws the PacketError of what has been decoded. On a GPU it waits for that.
  virtual void throw_if_faulted() = 0;
};

// On the stream that is current now. Throws Error if isthmus was built without CUDA.
std::unique_ptr<TensorWeights> make_cuda_weights(const at::Device& device);

}  // namespace isthmus::torch_backend
