// The host's part of weight differences on a device. The device's part is in kernels/weights/run_passes.h.
#pragma once

#include <memory>

#include "codec/gpu_device.h"
#include "kernels/weights/job.h"
#include "kernels/weights/weight_coder.h"

namespace isthmus {

// It throws Error for wrong types, sizes and alignments. The launcher outlives it.
std::unique_ptr<WeightCoder> make_weight_coder_of_gpu(DeviceLauncher& launcher);

// As throw_if_reported(), also for packets of weights.
void throw_if_any_reported(const kernels::DeviceFault& fault);

}  // namespace isthmus
