// What CUDA runs. Free of CUDA's headers.
#pragma once

namespace isthmus::kernels {

// Enqueues all passes of a job on `stream` (a cudaStream_t of the current device) and returns: no allocation, no
// synchronisation, and nothing that depends on data, so that a CUDA graph can capture it. The memory must stay as long
// as the stream, or the graph, works on it. Throws std::runtime_error where CUDA refuses a launch.
// kernels/<codec>/cuda.cu instantiates it for the jobs of a codec.
template <typename Job>
void cuda_run(const Job& job, void* stream);

}  // namespace isthmus::kernels
