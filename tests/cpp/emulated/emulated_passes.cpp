// See emulated_passes.h. This file has the passes on groups of many threads.
#define ISTHMUS_KERNEL_NAMESPACE emulated

#include "tests/cpp/emulated/emulated_passes.h"

#include "kernels/none/sequence.h"
#include "kernels/quant/sequence.h"
#include "kernels/tagc/sequence.h"
#include "kernels/weights/sequence.h"

namespace isthmus::kernels::emulated {

using test::EmulatedDevice;

static_assert(IsGroupOfPass<test::EmulatedGroup>);

void run_passes(EmulatedDevice& device, const NoneEncodeJob& job) { run_passes<EmulatedDevice>(device, job); }
void run_passes(EmulatedDevice& device, const NoneDecodeJob& job) { run_passes<EmulatedDevice>(device, job); }
void run_passes(EmulatedDevice& device, const QuantEncodeJob& job) { run_passes<EmulatedDevice>(device, job); }
void run_passes(EmulatedDevice& device, const QuantDecodeJob& job) { run_passes<EmulatedDevice>(device, job); }
void run_passes(EmulatedDevice& device, const TagcEncodeJob& job) { run_passes<EmulatedDevice>(device, job); }
void run_passes(EmulatedDevice& device, const TagcDecodeJob& job) { run_passes<EmulatedDevice>(device, job); }
void run_passes(EmulatedDevice& device, const WeightEncodeJob& job) { run_passes<EmulatedDevice>(device, job); }
void run_passes(EmulatedDevice& device, const WeightDecodeJob& job) { run_passes<EmulatedDevice>(device, job); }

}  // namespace isthmus::kernels::emulated
