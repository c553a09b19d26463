// Arithmetic on buffers on CUDA. Enqueues, waits and throws as kernels/cuda/run.h says. Free of CUDA's headers.
#pragma once

#include "isthmus/buffer.h"
#include "kernels/block/device.h"
#include "kernels/values/squared_error_job.h"

namespace isthmus::kernels {

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

// Device::guard_residual(), whose count is added to `counts`.
void cuda_guard_residual(ResidualGuard* guard, Buffer residual, DeviceCounts* counts, void* stream);

}  // namespace isthmus::kernels
