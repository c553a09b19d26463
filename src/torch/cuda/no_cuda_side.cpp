// Stands in for cuda_side.cpp and cuda_weights.cpp in a build without CUDA.
#include "isthmus/error.h"
#include "torch/cuda/cuda_side.h"
#include "torch/cuda/cuda_weights.h"

namespace isthmus::torch_backend {
namespace {

constexpr const char* kWithoutCuda = "isthmus was built without CUDA";

}  // namespace

std::unique_ptr<Side> make_cuda_side(const Group& /*group*/, CudaParts /*parts*/, FaultWatch& /*faults*/,
                                     CallCounters& /*counters*/) {
  throw Error(kWithoutCuda);
}

TensorWeights make_cuda_weights(const at::Device& /*device*/) { throw Error(kWithoutCuda); }

}  // namespace isthmus::torch_backend
