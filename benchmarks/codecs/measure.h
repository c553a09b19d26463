// Times in CPU time beside memcpy's, and beside those of the loops that every machine has.
//
// Every figure is of *source* bytes: those of the memory that is encoded, whatever the packet's size. Each iteration
// also times a memcpy of the source, so that "of_memcpy" (memcpy's best time / this one's) holds on a machine that is
// shared; with --beside_baseline it also runs with the baseline instruction set: "of_baseline". Every benchmark
// verifies what it computed; if one is wrong, the program fails.
#pragma once

#include <benchmark/benchmark.h>
#include <time.h>

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <limits>
#include <string>

#include "base/aligned_memory.h"
#include "isthmus/buffer.h"
#include "kernels/block/instruction_set.h"

namespace isthmus::bench {

inline bool something_is_wrong = false;
inline bool beside_baseline = false;

// Zeros at first.
struct Array {
  Array(int64_t num, DataType type)
      : memory(allocate_aligned(num * element_bytes(type))), num_elements(num), dtype(type) {
    std::memset(memory.get(), 0, static_cast<size_t>(buffer().bytes()));
  }
  Buffer buffer() const { return {memory.get(), num_elements, dtype}; }
  bool operator==(const Array& other) const {
    return std::memcmp(memory.get(), other.memory.get(), static_cast<size_t>(buffer().bytes())) == 0;
  }

  AlignedMemory memory;
  int64_t num_elements;
  DataType dtype;
};

// Best times of what ran in turns.
struct BestTime {
  double seconds = std::numeric_limits<double>::infinity();

  // clock: the CPU time of this thread, or of all.
  double time(clockid_t clock, const auto& work) {
    const double start_s = now_s(clock);
    work();
    const double took_s = now_s(clock) - start_s;
    seconds = std::min(seconds, took_s);
    return took_s;
  }

 private:
  static double now_s(clockid_t clock) {
    timespec now = {};
    clock_gettime(clock, &now);
    return static_cast<double>(now.tv_sec) + 1e-9 * static_cast<double>(now.tv_nsec);
  }
};

// Times work(), before which prepare() is called untimed. threads: it runs in more than the calling one.
inline void measure(benchmark::State& state, ConstBuffer source, const auto& work, const auto& prepare,
                    bool threads = false) {
  const clockid_t clock = threads ? CLOCK_PROCESS_CPUTIME_ID : CLOCK_THREAD_CPUTIME_ID;
  const kernels::InstructionSet in_use = kernels::instruction_set();
  const Array copy(source.num_elements, source.dtype);
  BestTime of_memcpy;
  BestTime of_work;
  BestTime of_baseline;
  for (auto iteration : state) {
    static_cast<void>(iteration);
    of_memcpy.time(clock, [&] {
      std::memcpy(copy.memory.get(), source.data, static_cast<size_t>(source.bytes()));
      benchmark::ClobberMemory();
    });
    prepare();
    state.SetIterationTime(of_work.time(clock, work));
    if (beside_baseline) {
      kernels::set_instruction_set(kernels::InstructionSet::kBaseline);
      prepare();
      of_baseline.time(clock, work);
      kernels::set_instruction_set(in_use);
    }
  }
  state.counters["GB/s"] = static_cast<double>(source.bytes()) / of_work.seconds / 1e9;
  state.counters["of_memcpy"] = of_memcpy.seconds / of_work.seconds;
  if (beside_baseline) {
    state.counters["of_baseline"] = of_baseline.seconds / of_work.seconds;
  }
}
inline void measure(benchmark::State& state, ConstBuffer source, const auto& work) {
  measure(state, source, work, [] {});
}

inline void verify(benchmark::State& state, bool right) {
  if (!right) {
    something_is_wrong = true;
    state.SkipWithError("WRONG RESULT");
  }
}

// Small sources take more iterations: where the machine is busy, some are not disturbed.
void add_benchmark(const std::string& name, int64_t source_mib, auto... arguments) {
  benchmark::RegisterBenchmark((name + "/" + std::to_string(source_mib) + "MiB").c_str(), arguments...)
      ->Iterations(source_mib < 64 ? 41 : 11)
      ->UseManualTime()
      ->Unit(benchmark::kMillisecond);
}

void register_weights();  // bench_weights.cpp
void register_step();     // bench_step.cpp

}  // namespace isthmus::bench
