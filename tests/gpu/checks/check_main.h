// The program of checks, whatever it runs on.
#pragma once

#include "tests/gpu/support/gpu.h"

namespace isthmus::gpu {

// Runs the groups of checks that the arguments name (all but `large` if none); of these, with --only=TEXT, those with
// such a text in their name. Returns the exit status: 0 if nothing failed, 1 if something did or nothing was run, 2 for
// wrong arguments.
int check_main(int argc, char** argv, const MakeGpu& make_gpu);

}  // namespace isthmus::gpu
