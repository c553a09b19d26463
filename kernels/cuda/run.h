// What CUDA runs: jobs of codecs, arithmetic on buffers, the context of a unit. Free of CUDA's headers.
#pragma once

#include "isthmus/buffer.h"
#include "kernels/block/device.h"
#include "kernels/block/job.h"

namespace isthmus::kernels {

// Each function enqueues its passes on `stream` (a cudaStream_t of the current device) and returns: no allocation, no
// synchronisation, and nothing that depends on data, so that a CUDA graph can capture it. The memory must stay as long
// as the stream, or the graph, works on it. Throws std::runtime_error where CUDA refuses a launch.

// All passes of a job. kernels/<codec>/cuda.cu instantiates it for the jobs of a codec.
template <typename Job>
void cuda_run(const Job& job, void* stream);

// Sets each of `count` contexts to `value`, in stream order.
void cuda_set_contexts(DeviceContext* contexts, int count, DeviceContext value, void* stream);

// ++context->step, in the order of the stream.
void cuda_next_step(DeviceContext* context, void* stream);

// The functions of the same name in buffer.h, without their checks of types and sizes. Results are bit-equal, except
// for which NaN a product is.
void cuda_convert(ConstBuffer in, Buffer out, void* stream);
void cuda_convert_scaled(ConstBuffer in, double scale, Buffer out, void* stream);

// values[i] *= factor (float32). A product too large for float32 becomes the largest float32.
void cuda_multiply(Buffer values, double factor, void* stream);

// sums[i] += values[i] (float32).
void cuda_add(ConstBuffer values, Buffer sums, void* stream);

// Adds given[i]^2 and (given[i] - decoded[i])^2 to the totals, for all i where both are finite. Equal values give equal
// sums on every device.
void cuda_add_squared_error(const SquaredErrorJob& job, void* stream);

// Device::drop_residual_after_spike(), whose count is added to `counts`.
void cuda_drop_residual_after_spike(Magnitudes* magnitudes, Buffer residual, DeviceCounts* counts, void* stream);

}  // namespace isthmus::kernels
