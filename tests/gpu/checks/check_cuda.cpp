// The checks on the first CUDA device. Exit status 77 where there is none.
#include <cstdio>
#include <exception>

#include "tests/gpu/checks/check_main.h"
#include "tests/gpu/support/cuda_gpu.h"

int main(int argc, char** argv) {
  if (!isthmus::gpu::has_cuda_gpu()) {
    std::puts("skipped: there is no GPU");
    return 77;
  }
  try {
    return isthmus::gpu::check_main(argc, argv, isthmus::gpu::make_cuda_gpu);
  } catch (const std::exception& error) {
    std::printf("%s\n", error.what());
    return 1;
  }
}
