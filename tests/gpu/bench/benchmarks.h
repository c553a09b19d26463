// Benchmarks of codecs on the first CUDA device.
#pragma once

#include <chrono>

#include "tests/gpu/bench/timing.h"
#include "tests/gpu/support/checks.h"

namespace isthmus::gpu {

// Speed of encoding and decoding beside a copy of as many bytes, in the same run; codec `quant` first. What is not
// begun by `end` is not run.
void bench_codecs(Checks& checks, Timer& timer, std::chrono::steady_clock::time_point end);

}  // namespace isthmus::gpu
