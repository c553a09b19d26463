#include "tests/gpu/bench/timing.h"

#include <algorithm>

namespace isthmus::gpu {
namespace {

// Also long enough for the host to launch a graph behind it meanwhile.
constexpr size_t kLeastFlushedBytes = size_t{256} << 20;

}  // namespace

Times Times::of(std::vector<double> values) {
  std::sort(values.begin(), values.end());
  const size_t last = values.size() - 1;
  return {values[last / 2], values[last / 4], values[last - last / 4]};
}

Timer::Timer() {
  int l2_bytes = 0;
  check_cuda(cudaDeviceGetAttribute(&l2_bytes, cudaDevAttrL2CacheSize, 0), "cudaDeviceGetAttribute");
  flushed_bytes_ = std::max(kLeastFlushedBytes, 2 * static_cast<size_t>(l2_bytes));
  check_cuda(cudaStreamCreateWithFlags(&stream_, cudaStreamNonBlocking), "cudaStreamCreateWithFlags");
  check_cuda(cudaEventCreate(&begin_), "cudaEventCreate");
  check_cuda(cudaEventCreate(&end_), "cudaEventCreate");
  check_cuda(cudaMalloc(&flushed_, flushed_bytes_), "cudaMalloc");
}

Timer::~Timer() {
  cudaFree(flushed_);
  cudaEventDestroy(end_);
  cudaEventDestroy(begin_);
  cudaStreamDestroy(stream_);
}

Times Timer::device_us(int repetitions, const std::function<void()>& work) {
  work();  // kernels are loaded at their first launch, which no graph can capture
  check_cuda(cudaStreamSynchronize(stream_), "cudaStreamSynchronize");
  cudaGraph_t graph = nullptr;
  cudaGraphExec_t executable = nullptr;
  check_cuda(cudaStreamBeginCapture(stream_, cudaStreamCaptureModeThreadLocal), "cudaStreamBeginCapture");
  work();
  check_cuda(cudaStreamEndCapture(stream_, &graph), "cudaStreamEndCapture");
  check_cuda(cudaGraphInstantiate(&executable, graph, 0), "cudaGraphInstantiate");
  std::vector<double> times_us;
  for (int i = 0; i < repetitions + 2; ++i) {
    check_cuda(cudaMemsetAsync(flushed_, i, flushed_bytes_, stream_), "cudaMemsetAsync");
    check_cuda(cudaEventRecord(begin_, stream_), "cudaEventRecord");
    check_cuda(cudaGraphLaunch(executable, stream_), "cudaGraphLaunch");
    check_cuda(cudaEventRecord(end_, stream_), "cudaEventRecord");
    check_cuda(cudaEventSynchronize(end_), "cudaEventSynchronize");
    float milliseconds = 0;
    check_cuda(cudaEventElapsedTime(&milliseconds, begin_, end_), "cudaEventElapsedTime");
    if (i >= 2) {  // the first two warm up
      times_us.push_back(1e3 * static_cast<double>(milliseconds));
    }
  }
  check_cuda(cudaGraphExecDestroy(executable), "cudaGraphExecDestroy");
  check_cuda(cudaGraphDestroy(graph), "cudaGraphDestroy");
  return Times::of(times_us);
}

}  // namespace isthmus::gpu
