// The tables that the translation units of the instruction sets define; see tagc_cpu.cpp for who picks one.
#pragma once

#include "kernels/tagc/layout.h"

namespace isthmus::kernels {

extern const TagcKernels kBaselineTagcKernels;
#ifdef ISTHMUS_X86_KERNELS
extern const TagcKernels kAvx2TagcKernels;
extern const TagcKernels kAvx512TagcKernels;
#endif

}  // namespace isthmus::kernels
