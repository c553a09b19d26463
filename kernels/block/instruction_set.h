// Which instructions the CPU loops use. Chosen once from what the machine has; results are bit-equal in all of them.
#pragma once

#include <cstdint>
#include <vector>

namespace isthmus::kernels {

enum class InstructionSet : uint8_t {
  kBaseline,  // what every machine of this architecture has: SSE2 on x86-64
  kAvx2,      // with BMI1, BMI2 and POPCNT
  kAvx512,    // F, BW, DQ and VL, on top of kAvx2
};
const char* to_string(InstructionSet instruction_set);

// Those that both this build and this machine have, ascending; the first is kBaseline.
std::vector<InstructionSet> available_instruction_sets();

// The one in use: the last of the available ones, unless it was set.
InstructionSet instruction_set();

// For tests and benchmarks. `wanted` must be available. Not while another thread runs a kernel.
void set_instruction_set(InstructionSet wanted);

}  // namespace isthmus::kernels
