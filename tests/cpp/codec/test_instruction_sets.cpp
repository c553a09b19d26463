// Each instruction set has loops of its own, and what callers get are those of the set in use.
#include <gtest/gtest.h>

#include <array>
#include <bit>
#include <cstdint>
#include <map>
#include <string>

#include "kernels/cpu_kernels.h"
#include "tests/cpp/support/instruction_sets.h"

namespace isthmus {
namespace {

// The addresses in a table of functions.
template <typename Table>
auto functions_of(const Table& table) {
  return std::bit_cast<std::array<uintptr_t, sizeof(Table) / sizeof(uintptr_t)>>(table);
}

TEST(InstructionSets, AreThoseThatWereCompiled) { EXPECT_EQ(kernels::compiled_kernels().size(), ISTHMUS_NUM_SETS); }

TEST(InstructionSets, ShareNoFunction) {
  std::map<uintptr_t, std::string> owners;
  const auto add = [&](const kernels::CpuKernels& all, const char* codec, const auto& table) {
    int place = 0;
    for (const uintptr_t function : functions_of(table)) {
      const std::string owner =
          std::string(kernels::to_string(all.instruction_set)) + " " + codec + " " + std::to_string(place++);
      const auto [found, is_new] = owners.emplace(function, owner);
      EXPECT_TRUE(is_new) << owner << " is " << found->second;
    }
  };
  for (const kernels::CpuKernels& all : kernels::compiled_kernels()) {
    add(all, "checksum", all.checksum);
    add(all, "quant", all.quant);
    add(all, "tagc", all.tagc);
    add(all, "weights", all.weights);
  }
}

TEST(InstructionSets, BestOneIsInUse) {
  EXPECT_EQ(kernels::instruction_set(), kernels::available_instruction_sets().back());
}

TEST(InstructionSets, CallersGetTheLoopsOfTheOneInUse) {
  auto expected = kernels::compiled_kernels().begin();  // a machine has the first ones of those that were compiled
  in_every_instruction_set([&] {
    EXPECT_EQ(kernels::instruction_set(), expected->instruction_set);
    EXPECT_EQ(functions_of(kernels::checksum_kernels()), functions_of(expected->checksum));
    EXPECT_EQ(functions_of(kernels::quant_kernels()), functions_of(expected->quant));
    EXPECT_EQ(functions_of(kernels::tagc_kernels()), functions_of(expected->tagc));
    EXPECT_EQ(functions_of(kernels::weight_kernels(DataType::kBFloat16)), functions_of(expected->weights.bfloat16));
    EXPECT_EQ(functions_of(kernels::weight_kernels(DataType::kFloat16)), functions_of(expected->weights.float16));
    EXPECT_EQ(functions_of(kernels::weight_kernels(DataType::kFloat32)), functions_of(expected->weights.float32));
    ++expected;
  });
}

}  // namespace
}  // namespace isthmus
