#include "kernels/cuda/executor.cuh"
#include "kernels/elementwise/run_passes.h"

namespace isthmus::kernels {

template void cuda_run(const ConvertJob& job, void* stream);
template void cuda_run(const MultiplyJob& job, void* stream);
template void cuda_run(const AddJob& job, void* stream);
template void cuda_run(const SquaredErrorJob& job, void* stream);
template void cuda_run(const DropResidualJob& job, void* stream);
template void cuda_run(const SetContextsJob& job, void* stream);
template void cuda_run(const NextStepJob& job, void* stream);
template void cuda_run(const RefuseUnitsJob& job, void* stream);

}  // namespace isthmus::kernels
