// The tables that the translation units of the instruction sets define; see quant_cpu.cpp for who picks one.
#pragma once

#include "kernels/quant/layout.h"

namespace isthmus::kernels {

extern const QuantKernels kBaselineQuantKernels;
#ifdef ISTHMUS_X86_KERNELS
extern const QuantKernels kAvx2QuantKernels;
extern const QuantKernels kAvx512QuantKernels;
#endif

}  // namespace isthmus::kernels
