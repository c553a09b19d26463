// Benchmarks of codecs on the first CUDA device.
#pragma once

#include "tests/gpu/bench/timing.h"
#include "tests/gpu/support/checks.h"

namespace isthmus::gpu {

// Speed of encoding and decoding beside a copy of as many bytes, in the same run.
void bench_codecs(Checks& checks, Timer& timer);
// What the host does for one call: of a codec, and of the communicator's whole path.
void bench_launches(Checks& checks, Timer& timer);

}  // namespace isthmus::gpu
