// Codecs on CUDA. Free of CUDA's headers.
#pragma once

#include "kernels/none/job.h"
#include "kernels/quant/job.h"
#include "kernels/sparse/job.h"
#include "kernels/tagc/job.h"

namespace isthmus::kernels {

// Enqueue all passes of a job on `stream` (a cudaStream_t of the current device) and return: no allocation, no
// synchronisation, and nothing that depends on data, so that a CUDA graph can capture it. The job's memory must stay as
// long as the stream, or the graph, works on it. Throw std::runtime_error where CUDA refuses a launch.
void cuda_encode_tagc(const TagcEncodeJob& job, void* stream);
void cuda_decode_tagc(const TagcDecodeJob& job, void* stream);
void cuda_encode_quant(const QuantEncodeJob& job, void* stream);
void cuda_decode_quant(const QuantDecodeJob& job, void* stream);
void cuda_encode_sparse(const SparseEncodeJob& job, void* stream);
void cuda_decode_sparse(const SparseDecodeJob& job, void* stream);
void cuda_encode_none(const NoneEncodeJob& job, void* stream);
void cuda_decode_none(const NoneDecodeJob& job, void* stream);

// *context = value: once for a unit, or before every job where no graph is captured. In the order of the stream.
void cuda_set_context(DeviceContext* context, DeviceContext value, void* stream);

// ++context->step, in the order of the stream.
void cuda_next_step(DeviceContext* context, void* stream);

}  // namespace isthmus::kernels
