// Benchmarks on the first CUDA device. Exit status 77 where there is none.
#include <cstdio>
#include <exception>

#include "tests/gpu/bench/benchmarks.h"
#include "tests/gpu/support/cuda_gpu.h"

int main() {
  if (!isthmus::gpu::has_cuda_gpu()) {
    std::puts("skipped: there is no GPU");
    return 77;
  }
  isthmus::gpu::Checks checks;
  try {
    isthmus::gpu::Timer timer;
    isthmus::gpu::bench_launches(checks, timer);
    isthmus::gpu::bench_codecs(checks, timer);
  } catch (const std::exception& error) {
    std::printf("%s\n", error.what());
    return 1;
  }
  return checks.failed() ? 1 : 0;
}
