// The loops for each instruction set. cpu_variant.cpp defines those that this build has.
#pragma once

#include "kernels/block/instruction_set.h"
#include "kernels/tagc/layout.h"

namespace isthmus::kernels {

const TagcKernels& tagc_kernels_of(baseline::Instructions set);
const TagcKernels& tagc_kernels_of(avx2::Instructions set);
const TagcKernels& tagc_kernels_of(avx512::Instructions set);

}  // namespace isthmus::kernels
