// Jobs of codecs on CUDA. Free of CUDA's headers.
#pragma once

#include "kernels/block/device.h"

namespace isthmus::kernels {

// Enqueues all passes of a job on `stream` (a cudaStream_t of the current device) and returns: no allocation, no
// synchronisation, and nothing that depends on data, so that a CUDA graph can capture it. The job's memory must stay as
// long as the stream, or the graph, works on it. Throws std::runtime_error where CUDA refuses a launch.
//
// kernels/<codec>/cuda.cu instantiates it for the jobs of a codec.
template <typename Job>
void cuda_run(const Job& job, void* stream);

// Sets *context = value, in stream order. Called once for a unit.
void cuda_set_context(DeviceContext* context, DeviceContext value, void* stream);

// ++context->step, in the order of the stream.
void cuda_next_step(DeviceContext* context, void* stream);

}  // namespace isthmus::kernels
