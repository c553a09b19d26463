#include "tests/cpp/gpu/device/cuda_gpu.h"

#include <cstdio>
#include <exception>
#include <string>
#include <vector>

#include "cuda/cuda_device.h"
#include "tests/cpp/gpu/device/tests.h"

namespace isthmus::gpu {
namespace {

// Destroyed with the last copy of the function that replays it.
struct Graph {
  Graph() = default;
  Graph(const Graph&) = delete;
  Graph& operator=(const Graph&) = delete;
  ~Graph() {
    if (executable != nullptr) {
      cudaGraphExecDestroy(executable);
    }
    if (graph != nullptr) {
      cudaGraphDestroy(graph);
    }
  }
  cudaGraph_t graph = nullptr;
  cudaGraphExec_t executable = nullptr;
};

class CudaGpu final : public Gpu {
 public:
  CudaGpu() : device_(0) {}
  ~CudaGpu() override {
    for (cudaStream_t stream : streams_) {
      cudaStreamDestroy(stream);
    }
  }

  Device& device() override { return device_; }

  Stream make_stream() override {
    cudaStream_t stream = nullptr;
    check_cuda(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking), "cudaStreamCreateWithFlags");
    streams_.push_back(stream);
    return {stream};
  }

  void synchronize() override { check_cuda(cudaDeviceSynchronize(), "cudaDeviceSynchronize"); }

  std::function<void()> capture(Stream stream, const std::function<void()>& work) override {
    auto* handle = static_cast<cudaStream_t>(stream.handle);
    const auto graph = std::make_shared<Graph>();
    check_cuda(cudaStreamBeginCapture(handle, cudaStreamCaptureModeThreadLocal), "cudaStreamBeginCapture");
    work();
    check_cuda(cudaStreamEndCapture(handle, &graph->graph), "cudaStreamEndCapture");
    check_cuda(cudaGraphInstantiate(&graph->executable, graph->graph, 0), "cudaGraphInstantiate");
    return [graph, handle] { check_cuda(cudaGraphLaunch(graph->executable, handle), "cudaGraphLaunch"); };
  }

  int64_t free_bytes() override {
    size_t free = 0;
    size_t total = 0;
    check_cuda(cudaMemGetInfo(&free, &total), "cudaMemGetInfo");
    return static_cast<int64_t>(free);
  }

 private:
  CudaDevice device_;
  std::vector<cudaStream_t> streams_;
};

}  // namespace

void check_cuda(cudaError_t result, const char* call) {
  require(result == cudaSuccess, std::string(call) + ": " + cudaGetErrorString(result));
}

std::unique_ptr<Gpu> make_gpu() { return std::make_unique<CudaGpu>(); }

int main_on_cuda(const std::function<int()>& body) {
  int num_devices = 0;
  if (cudaGetDeviceCount(&num_devices) != cudaSuccess || num_devices == 0) {
    std::puts("skipped: there is no GPU");
    return 77;
  }
  try {
    return body();
  } catch (const std::exception& error) {
    std::printf("%s\n", error.what());
    return 1;
  }
}

}  // namespace isthmus::gpu
