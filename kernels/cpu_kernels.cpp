#include "kernels/cpu_kernels.h"

#include <array>
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

namespace {

template <typename Instructions>
CpuKernels kernels_of(InstructionSet instruction_set, Instructions set) {
  return {instruction_set, checksum_kernels_of(set), quant_kernels_of(set), tagc_kernels_of(set),
          weight_kernels_of(set)};
}

bool machine_has(InstructionSet instruction_set) {
  switch (instruction_set) {
    case InstructionSet::kBaseline:
      return true;
#ifdef __x86_64__
    case InstructionSet::kAvx2:
      return __builtin_cpu_supports("avx2") && __builtin_cpu_supports("bmi") && __builtin_cpu_supports("bmi2") &&
             __builtin_cpu_supports("popcnt");
    case InstructionSet::kAvx512:
      return machine_has(InstructionSet::kAvx2) && __builtin_cpu_supports("avx512f") &&
             __builtin_cpu_supports("avx512bw") && __builtin_cpu_supports("avx512dq") &&
             __builtin_cpu_supports("avx512vl");
#else
    case InstructionSet::kAvx2:
    case InstructionSet::kAvx512:
      return false;
#endif
  }
  return false;
}

std::atomic<const CpuKernels*>& current() {
  static std::atomic<const CpuKernels*> value = [] {
    const CpuKernels* best = nullptr;
    for (const CpuKernels& kernels : compiled_kernels()) {
      best = machine_has(kernels.instruction_set) ? &kernels : best;
    }
    return best;
  }();
  return value;
}

const CpuKernels& in_use() { return *current().load(std::memory_order_relaxed); }

}  // namespace

// Which sets there are the compiler says, not a definition that a target could lack: one that CMake did not build fails
// to link.
std::span<const CpuKernels> compiled_kernels() {
  static const std::array tables = {
      kernels_of(InstructionSet::kBaseline, baseline::Instructions{}),
#ifdef __x86_64__
      kernels_of(InstructionSet::kAvx2, avx2::Instructions{}),
      kernels_of(InstructionSet::kAvx512, avx512::Instructions{}),
#endif
  };
  return tables;
}

std::vector<InstructionSet> available_instruction_sets() {
  std::vector<InstructionSet> available;
  for (const CpuKernels& kernels : compiled_kernels()) {
    if (machine_has(kernels.instruction_set)) {
      available.push_back(kernels.instruction_set);
    }
  }
  return available;
}

InstructionSet instruction_set() { return in_use().instruction_set; }

void set_instruction_set(InstructionSet wanted) {
  for (const CpuKernels& kernels : compiled_kernels()) {
    if (kernels.instruction_set == wanted) {
      current().store(&kernels, std::memory_order_relaxed);
    }
  }
}

const ChecksumKernels& checksum_kernels() { return in_use().checksum; }
const QuantKernels& quant_kernels() { return in_use().quant; }
const TagcKernels& tagc_kernels() { return in_use().tagc; }
const WeightKernels& weight_kernels(DataType dtype) {
  const WeightKernelTable& table = in_use().weights;
  return dtype == DataType::kFloat16 ? table.float16 : dtype == DataType::kBFloat16 ? table.bfloat16 : table.float32;
}

}  // namespace isthmus::kernels
