// The instruction set of the CPU loops. The machine's features choose it once; results are bit-equal in all of them.
// kernels/cpu_kernels.cpp, alone, knows which sets were compiled: a header would be read by who does not.
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

// The sets that both this build and this machine have, ascending; the first is kBaseline.
std::vector<InstructionSet> available_instruction_sets();

// The set whose loops run: the last available one, unless another was set.
InstructionSet instruction_set();

// Tags of the sets, for overloads. kernels/CMakeLists.txt compiles each codec's cpu.cpp in each of these
// namespaces, with the compiler's flags for the set.
namespace baseline {
struct Instructions {};
}  // namespace baseline
namespace avx2 {
struct Instructions {};
}  // namespace avx2
namespace avx512 {
struct Instructions {};
}  // namespace avx512

// For tests and benchmarks. `wanted` must be available, and no other thread may run a kernel meanwhile.
void set_instruction_set(InstructionSet wanted);

}  // namespace isthmus::kernels
