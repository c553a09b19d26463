#include "kernels/cuda/executor.cuh"
#include "kernels/tagc/run_passes.h"

namespace isthmus::kernels {

template void cuda_run(const TagcEncodeJob& job, void* stream);
template void cuda_run(const TagcDecodeJob& job, void* stream);
template void cuda_run(const TagcFlatEncodeJob& job, void* stream);
template void cuda_run(const TagcFlatMergeJob& job, void* stream);
template void cuda_run(const TagcFlatDecodeJob& job, void* stream);

}  // namespace isthmus::kernels
