// The checks on the first CUDA device. Exit status 77 where there is none.
#include "tests/gpu/checks/suites.h"
#include "tests/gpu/support/cuda_gpu.h"

int main(int argc, char** argv) {
  return isthmus::gpu::main_on_cuda([&] { return isthmus::gpu::check_main(argc, argv, isthmus::gpu::make_cuda_gpu); });
}
