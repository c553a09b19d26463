// The passes of all jobs on emulated groups, compiled once: with each test that runs some they would take as long as
// all else that it is compiled of.
#pragma once

#ifndef ISTHMUS_KERNEL_NAMESPACE
#define ISTHMUS_KERNEL_NAMESPACE emulated
#endif

#include "kernels/jobs.h"
#include "tests/cpp/emulated/emulated_device.h"
#include "tests/cpp/support/one_thread.h"

namespace isthmus::kernels::emulated {

// As the templates in kernels/*/run_passes.h for the job's type.
void run_passes(test::EmulatedDevice& device, const AnyJob& job);
void run_passes(test::OneThreadExecutor& executor, const AnyJob& job);

}  // namespace isthmus::kernels::emulated
