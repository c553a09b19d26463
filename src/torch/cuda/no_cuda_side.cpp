// Stands in for cuda_side.cpp in a build without CUDA.
#include "isthmus/error.h"
#include "torch/cuda/cuda_side.h"

namespace isthmus::torch_backend {

std::unique_ptr<CudaSide> make_cuda_side(CudaParts /*parts*/, NodeMap /*map*/, int /*rank*/,
                                         isthmus::Options /*options*/) {
  throw Error("isthmus was built without CUDA");
}

}  // namespace isthmus::torch_backend
