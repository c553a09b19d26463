// Benchmarks on the first CUDA device. Exit status 77 where there is none.
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <exception>

#include "tests/gpu/bench/benchmarks.h"
#include "tests/gpu/support/cuda_gpu.h"

namespace {

// When nothing more is begun: before whoever started this ends it (harness/main.py).
std::chrono::steady_clock::time_point end_of_time() {
  using Clock = std::chrono::steady_clock;
  constexpr double kShare = 0.8;
  const char* const limit_s = std::getenv("GPU_STEP_LIMIT_S");
  if (limit_s == nullptr) {
    return Clock::time_point::max();
  }
  return Clock::now() + std::chrono::milliseconds(static_cast<int64_t>(1e3 * kShare * std::atof(limit_s)));
}

}  // namespace

int main() {
  const auto end = end_of_time();
  if (!isthmus::gpu::has_cuda_gpu()) {
    std::puts("skipped: there is no GPU");
    return 77;
  }
  isthmus::gpu::Checks checks;
  try {
    isthmus::gpu::Timer timer;
    isthmus::gpu::bench_codecs(checks, timer, end);
  } catch (const std::exception& error) {
    std::printf("%s\n", error.what());
    return 1;
  }
  return checks.failed() ? 1 : 0;
}
