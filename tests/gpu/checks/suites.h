// The checks, in groups. Each makes GPUs of its own. `is_short`: few and small, for tools that slow everything down.
#pragma once

#include "tests/gpu/support/checks.h"
#include "tests/gpu/support/gpu.h"

namespace isthmus::gpu {

void check_codecs(Checks& checks, const MakeGpu& make_gpu, bool is_short);
void check_flat(Checks& checks, const MakeGpu& make_gpu, bool is_short);
void check_batches(Checks& checks, const MakeGpu& make_gpu, bool is_short);
void check_weights(Checks& checks, const MakeGpu& make_gpu, bool is_short);
void check_arithmetic(Checks& checks, const MakeGpu& make_gpu, bool is_short);
void check_order(Checks& checks, const MakeGpu& make_gpu, bool is_short);
void check_faults(Checks& checks, const MakeGpu& make_gpu, bool is_short);
void check_graphs(Checks& checks, const MakeGpu& make_gpu, bool is_short);
// Needs gigabytes of the device's and the host's memory.
void check_large(Checks& checks, const MakeGpu& make_gpu, bool is_short);

// Be a program of checks: run the groups that the arguments name (all but `large` if none); of these, with --only=TEXT,
// those checks with such a text in their name. Returns the exit status: 0 if nothing failed, 1 if something did or
// nothing was run, 2 for wrong arguments.
int check_main(int argc, char** argv, const MakeGpu& make_gpu);

}  // namespace isthmus::gpu
