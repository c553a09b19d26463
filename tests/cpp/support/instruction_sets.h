// Runs checks in every instruction set of this machine.
#pragma once

#include <gtest/gtest.h>

#include "kernels/block/instruction_set.h"

namespace isthmus {

// Calls check() in each available instruction set, and restores the one in use.
template <typename Check>
void in_every_instruction_set(const Check& check) {
  const kernels::InstructionSet in_use = kernels::instruction_set();
  for (const kernels::InstructionSet wanted : kernels::available_instruction_sets()) {
    SCOPED_TRACE(kernels::to_string(wanted));
    kernels::set_instruction_set(wanted);
    check();
  }
  kernels::set_instruction_set(in_use);
}

}  // namespace isthmus
