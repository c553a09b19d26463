// Communicators on emulated GPUs with each codec and each way to use it: results, residuals and statistics, measured
// errors included, are those of the CPU.
#include <gtest/gtest.h>

#include <chrono>
#include <cstdint>
#include <string>
#include <vector>

#include "isthmus/communicator.h"
#include "tests/cpp/support/gpu_calls.h"
#include "tests/cpp/support/gpu_world.h"

namespace isthmus {
namespace {

using test::calls_of_one_step;
using test::expect_equal_state;
using test::expect_results_of_cpu;
using test::GpuWorld;
using test::lossy_options;
using test::on_both;
using test::World;

struct Arm {
  std::string name;
  Options options;
};

Options options_of(const std::string& codec) {
  Options options = lossy_options();
  options.codec = codec;
  options.error_interval = 1;
  return options;
}

std::vector<Arm> arms() {
  std::vector<Arm> all;
  all.push_back({"quant", options_of("quant")});

  Options one_bit = options_of("quant");
  one_bit.bits = 1;
  one_bit.error_feedback = "on";
  all.push_back({"quant_one_bit_with_feedback", one_bit});

  Options cells = options_of("tagc");
  cells.cell_type = "int8";
  cells.ratio = 0;
  cells.sparsity = .9;
  cells.dense_steps = 1;
  all.push_back({"tagc_int8_rows_by_load_after_a_dense_step", cells});
  return all;
}

class CodecsOnGpu : public ::testing::TestWithParam<Arm> {};
INSTANTIATE_TEST_SUITE_P(Arms, CodecsOnGpu, ::testing::ValuesIn(arms()),
                         [](const auto& parameter) { return parameter.param.name; });

TEST_P(CodecsOnGpu, ResultsStateAndErrorsAreThoseOfTheCpu) {
  GpuWorld world(NodeMap::parse("3x1", 3), GetParam().options);
  World cpu(world.map, GetParam().options);
  for (const uint64_t seed : {100, 200, 300}) {
    expect_results_of_cpu(world, cpu, calls_of_one_step(world.size(), seed), /*in_flight=*/8);
    on_both(world, cpu, [&](Communicator& communicator) {
      seed == 200 ? communicator.units().count_skipped_step() : communicator.units().count_step();
    });
  }
  expect_equal_state(world, cpu);
}

// Pieces of several segments, each a packet of its own.
TEST_P(CodecsOnGpu, SegmentsAreThoseOfTheCpu) {
  Options options = GetParam().options;
  options.segments = 3;
  GpuWorld world(NodeMap::parse("2x2", 4), options);
  World cpu(world.map, options);
  std::vector<test::Call> calls;
  for (const uint64_t seed : {1, 2, 3}) {
    calls.push_back({Collective::kReduceScatter, 2 * 9000 * 2 + 8, DataType::kBFloat16, 0.5, "rs", nullptr, seed});
    calls.push_back({Collective::kAllReduce, 2 * 9000 * 2 + 5, DataType::kFloat32, 0.25, "ar", nullptr, seed});
  }
  expect_results_of_cpu(world, cpu, calls, /*in_flight=*/3);
  expect_equal_state(world, cpu);
}

}  // namespace
}  // namespace isthmus
