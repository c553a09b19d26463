// The passes of all jobs on emulated groups, compiled once: with each test that runs some they would take as long as
// all else that it is compiled of. Calls are those of the templates in kernels/*/sequence.h.
#pragma once

#ifndef ISTHMUS_KERNEL_NAMESPACE
#define ISTHMUS_KERNEL_NAMESPACE emulated
#endif

#include "kernels/jobs.h"
#include "tests/cpp/emulated/emulated_device.h"
#include "tests/cpp/support/one_thread.h"

namespace isthmus::kernels::emulated {

void run_passes(test::EmulatedDevice& device, const NoneEncodeJob& job);
void run_passes(test::EmulatedDevice& device, const NoneDecodeJob& job);
void run_passes(test::EmulatedDevice& device, const QuantEncodeJob& job);
void run_passes(test::EmulatedDevice& device, const QuantDecodeJob& job);
void run_passes(test::EmulatedDevice& device, const TagcEncodeJob& job);
void run_passes(test::EmulatedDevice& device, const TagcDecodeJob& job);
void run_passes(test::EmulatedDevice& device, const WeightEncodeJob& job);
void run_passes(test::EmulatedDevice& device, const WeightDecodeJob& job);

void run_passes(test::OneThreadExecutor& executor, const NoneEncodeJob& job);
void run_passes(test::OneThreadExecutor& executor, const NoneDecodeJob& job);
void run_passes(test::OneThreadExecutor& executor, const QuantEncodeJob& job);
void run_passes(test::OneThreadExecutor& executor, const QuantDecodeJob& job);
void run_passes(test::OneThreadExecutor& executor, const TagcEncodeJob& job);
void run_passes(test::OneThreadExecutor& executor, const TagcDecodeJob& job);
void run_passes(test::OneThreadExecutor& executor, const WeightEncodeJob& job);
void run_passes(test::OneThreadExecutor& executor, const WeightDecodeJob& job);

}  // namespace isthmus::kernels::emulated
