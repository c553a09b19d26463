// Stands in for cuda_side.cpp in a build without CUDA.
#include "isthmus/error.h"
#include "torch/cuda/cuda_side.h"

namespace isthmus::torch_backend {

std::unique_ptr<Side> make_cuda_side(const Group& /*group*/, CudaParts /*parts*/, FaultWatch& /*faults*/,
                                     CallCounters& /*counters*/, WatcherFor /*watcher*/) {
  throw Error("isthmus was built without CUDA");
}

}  // namespace isthmus::torch_backend
