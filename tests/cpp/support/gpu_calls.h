// Calls for communicators on emulated GPUs, and what must be equal on them and on the CPU afterwards.
#pragma once

#include <gtest/gtest.h>

#include <cmath>
#include <cstdint>
#include <string>
#include <vector>

#include "isthmus/communicator.h"
#include "tests/cpp/support/gpu_world.h"

namespace isthmus::test {

// As large as two blocks of tagc and a bit, and one unit more often than there are sets of scratch memory.
inline std::vector<Call> calls_of_one_step(int64_t world_size, uint64_t seed) {
  std::vector<Call> calls;
  for (int repetition = 0; repetition < 2; ++repetition) {
    for (const char* unit : {"a", "b"}) {
      calls.push_back({Collective::kReduceScatter, 2100 * world_size, DataType::kBFloat16, 0.5, unit, {}, ++seed});
      calls.push_back(
          {Collective::kReduceScatter, 700 * world_size, DataType::kFloat32, 1, unit, Reason::kNotPrepared, ++seed});
      calls.push_back({Collective::kAllGather, 900 * world_size, DataType::kBFloat16, 1, "", {}, ++seed});
      calls.push_back({Collective::kAllReduce, 1500 * world_size + 1, DataType::kFloat32, 0.25, unit, {}, ++seed});
    }
  }
  return calls;
}

inline bool is_near(double value, double expected) { return std::fabs(value - expected) <= 1e-9 * std::fabs(expected); }

// Squares are added in another order.
inline void expect_equal_units_of_stats(const Stats& gpu, const Stats& cpu) {
  ASSERT_EQ(gpu.units.size(), cpu.units.size());
  for (const auto& [hash, on_cpu] : cpu.units) {
    ASSERT_TRUE(gpu.units.contains(hash));
    const UnitStats& on_gpu = gpu.units.at(hash);
    EXPECT_EQ(on_gpu.codec, on_cpu.codec) << on_cpu.name;
    EXPECT_EQ(on_gpu.settings, on_cpu.settings) << on_cpu.name;
    EXPECT_EQ(on_gpu.calls, on_cpu.calls) << on_cpu.name;
    EXPECT_EQ(on_gpu.coded_elements, on_cpu.coded_elements) << on_cpu.name;
    EXPECT_EQ(on_gpu.packet_bytes, on_cpu.packet_bytes) << on_cpu.name;
    EXPECT_TRUE(is_near(on_gpu.given_squares, on_cpu.given_squares)) << on_cpu.name << ": " << on_gpu.given_squares;
    EXPECT_TRUE(is_near(on_gpu.dropped_squares, on_cpu.dropped_squares)) << on_cpu.name;
  }
}

// Compares everything that a step leaves behind.
inline void expect_equal_stats(Communicator& on_gpu, Communicator& on_cpu) {
  const Stats gpu = on_gpu.stats();
  const Stats cpu = on_cpu.stats();
  for (size_t c = 0; c < gpu.collectives.size(); ++c) {
    EXPECT_EQ(gpu.collectives[c].calls, cpu.collectives[c].calls);
    EXPECT_EQ(gpu.collectives[c].packed_calls, cpu.collectives[c].packed_calls);
    EXPECT_EQ(gpu.collectives[c].intra.sent_bytes, cpu.collectives[c].intra.sent_bytes);
    EXPECT_EQ(gpu.collectives[c].inter.inter_node_sent_bytes, cpu.collectives[c].inter.inter_node_sent_bytes);
    EXPECT_EQ(gpu.collectives[c].encode_s, 0) << "nobody asked for timings";
  }
  EXPECT_EQ(gpu.codec.encoded_elements, cpu.codec.encoded_elements);
  EXPECT_EQ(gpu.codec.kept_elements, cpu.codec.kept_elements);
  EXPECT_EQ(gpu.codec.held_back_elements, cpu.codec.held_back_elements);
  EXPECT_EQ(gpu.codec.estimated_elements, cpu.codec.estimated_elements);
  EXPECT_EQ(gpu.codec.non_finite_blocks, cpu.codec.non_finite_blocks);
  EXPECT_EQ(gpu.codec.spikes, cpu.codec.spikes);
  EXPECT_EQ(gpu.compressed_calls, cpu.compressed_calls);
  EXPECT_EQ(gpu.exact_calls, cpu.exact_calls);
  EXPECT_EQ(gpu.skipped_steps, cpu.skipped_steps);
  EXPECT_EQ(gpu.num_units, cpu.num_units);
  EXPECT_EQ(gpu.residual_bytes, cpu.residual_bytes);
  expect_equal_units_of_stats(gpu, cpu);
}

inline void expect_equal_units(Communicator& on_gpu, Communicator& on_cpu) {
  const std::vector<UnitState> gpu = on_gpu.units().states();
  const std::vector<UnitState> cpu = on_cpu.units().states();
  ASSERT_EQ(gpu.size(), cpu.size());
  for (size_t u = 0; u < gpu.size(); ++u) {
    EXPECT_EQ(gpu[u].key, cpu[u].key);
    EXPECT_EQ(gpu[u].step, cpu[u].step);
    EXPECT_EQ(gpu[u].scale, cpu[u].scale);
    EXPECT_TRUE(gpu[u].residual == cpu[u].residual) << gpu[u].key.name;
    EXPECT_TRUE(gpu[u].result_residual == cpu[u].result_residual) << gpu[u].key.name;
  }
}

inline void expect_equal_state(GpuWorld& world, World& cpu) {
  for (int rank = 0; rank < world.size(); ++rank) {
    SCOPED_TRACE("rank " + std::to_string(rank));
    world.ranks[rank].gpu->synchronize();  // squared errors are read without waiting
    expect_equal_stats(*world.ranks[rank].communicator, *cpu.ranks[rank]);
    expect_equal_units(*world.ranks[rank].communicator, *cpu.ranks[rank]);
  }
}

// What is done to both communicators of every rank, without waiting for what is under way.
template <typename Action>
void on_both(GpuWorld& world, World& cpu, const Action& action) {
  for (int rank = 0; rank < world.size(); ++rank) {
    action(*world.ranks[rank].communicator);
    action(*cpu.ranks[rank]);
  }
}

}  // namespace isthmus::test
