// Arithmetic on buffers on CUDA. Enqueues, waits and throws as kernels/cuda/run.h says. Free of CUDA's headers.
#pragma once

#include "isthmus/buffer.h"
#include "kernels/block/device.h"
#include "kernels/values/squared_error_job.h"

namespace isthmus::kernels {

// As the functions of the same name in buffer.h, which check types and sizes; these do not. Bit for bit, except for
// which NaN a product is.
void cuda_convert(ConstBuffer in, Buffer out, void* stream);
void cuda_convert_scaled(ConstBuffer in, double scale, Buffer out, void* stream);

// values[i] *= factor (float32). What is too large for float32 becomes the largest that is not.
void cuda_multiply(Buffer values, double factor, void* stream);

// sums[i] += values[i] (float32).
void cuda_add(ConstBuffer values, Buffer sums, void* stream);

// Adds given[i]^2 and (given[i] - decoded[i])^2, for all i where both are finite, to the totals. The same sums for the
// same values on every device.
void cuda_add_squared_error(const SquaredErrorJob& job, void* stream);

// The end of a step, in the order of the stream: what was kept since the last end is added to skipped_elements if
// `is_skipped`.
void cuda_end_step(DeviceCounts* counts, bool is_skipped, void* stream);

}  // namespace isthmus::kernels
