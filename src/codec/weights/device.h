// The host's part of weight differences on a device. The device's part is in kernels/weights/sequence.h.
#pragma once

#include <cstdint>
#include <memory>

#include "codec/gpu_device.h"
#include "codec/weights/weight_coder.h"
#include "kernels/weights/job.h"

namespace isthmus {

int64_t weight_encode_scratch_bytes(ConstBuffer shard);
int64_t weight_decode_scratch_bytes(ConstBuffer shard, int64_t num_nodes);
// Both throw Error for wrong types, sizes and alignments. Contents of scratch memory do not matter.
kernels::WeightEncodeJob make_weight_encode_job(const WeightEncode& encode, Buffer scratch);
kernels::WeightDecodeJob make_weight_decode_job(const WeightDecode& decode, Buffer scratch);

// The launcher outlives it.
std::unique_ptr<WeightCoder> make_weight_coder_of_gpu(DeviceLauncher& launcher);

// As throw_if_reported(), also for packets of weights.
void throw_if_any_reported(const kernels::DeviceFault& fault);

}  // namespace isthmus
