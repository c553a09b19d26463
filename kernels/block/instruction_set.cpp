#include "kernels/block/instruction_set.h"

#include <atomic>

namespace isthmus::kernels {

const char* to_string(InstructionSet instruction_set) {
  switch (instruction_set) {
    case InstructionSet::kBaseline:
      return "baseline";
    case InstructionSet::kAvx2:
      return "AVX2";
    case InstructionSet::kAvx512:
      return "AVX-512";
  }
  return "unknown";
}

std::vector<InstructionSet> available_instruction_sets() {
  std::vector<InstructionSet> available = {InstructionSet::kBaseline};
#ifdef ISTHMUS_X86_KERNELS
  const bool avx2 = __builtin_cpu_supports("avx2") && __builtin_cpu_supports("bmi") && __builtin_cpu_supports("bmi2") &&
                    __builtin_cpu_supports("popcnt");
  const bool avx512 = avx2 && __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
                      __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vl");
  if (avx2) {
    available.push_back(InstructionSet::kAvx2);
  }
  if (avx512) {
    available.push_back(InstructionSet::kAvx512);
  }
#endif
  return available;
}

namespace {

std::atomic<InstructionSet>& current() {
  static std::atomic<InstructionSet> value = available_instruction_sets().back();
  return value;
}

}  // namespace

InstructionSet instruction_set() { return current().load(std::memory_order_relaxed); }

void set_instruction_set(InstructionSet wanted) { current().store(wanted, std::memory_order_relaxed); }

}  // namespace isthmus::kernels
