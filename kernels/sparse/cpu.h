// The tables that the translation units of the instruction sets define; see sparse_cpu.cpp for who picks one.
#pragma once

#include "kernels/sparse/layout.h"

namespace isthmus::kernels {

extern const SparseKernels kBaselineSparseKernels;
#ifdef ISTHMUS_X86_KERNELS
extern const SparseKernels kAvx2SparseKernels;
extern const SparseKernels kAvx512SparseKernels;
#endif

}  // namespace isthmus::kernels
