#include "kernels/cuda/executor.cuh"
#include "kernels/units/run_passes.h"

namespace isthmus::kernels {

template void cuda_run(const RefuseUnitsJob& job, void* stream);

}  // namespace isthmus::kernels
