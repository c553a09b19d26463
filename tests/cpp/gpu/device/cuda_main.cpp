// The tests on the first CUDA device. Exit status 77 where there is none.
#include "tests/cpp/gpu/device/cuda_gpu.h"
#include "tests/cpp/gpu/device/tests.h"

int main(int argc, char** argv) {
  return isthmus::gpu::main_on_cuda([&] { return isthmus::gpu::run_tests(argc, argv); });
}
