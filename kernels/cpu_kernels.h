// The loops of all codecs on the CPU: a table for each instruction set, and the one that runs.
#pragma once

#include <span>

#include "kernels/block/instruction_set.h"
#include "kernels/checksum/cpu.h"
#include "kernels/quant/layout.h"
#include "kernels/tagc/layout.h"
#include "kernels/weights/layout.h"

namespace isthmus::kernels {

struct CpuKernels {
  InstructionSet instruction_set;
  ChecksumKernels checksum;
  QuantKernels quant;
  TagcKernels tagc;
  WeightKernelTable weights;
};

// Those of each set that this build has, ascending. Loops of a set that the machine lacks must not be called.
std::span<const CpuKernels> compiled_kernels();

}  // namespace isthmus::kernels
