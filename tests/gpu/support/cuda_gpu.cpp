#include "tests/gpu/support/cuda_gpu.h"

#include <cuda_runtime.h>

#include <string>
#include <vector>

#include "cuda/cuda_device.h"
#include "tests/gpu/support/checks.h"

namespace isthmus::gpu {
namespace {

void check(cudaError_t result, const char* call) {
  require(result == cudaSuccess, std::string(call) + ": " + cudaGetErrorString(result));
}

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
    check(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking), "cudaStreamCreateWithFlags");
    streams_.push_back(stream);
    return {stream};
  }

  void synchronize() override { check(cudaDeviceSynchronize(), "cudaDeviceSynchronize"); }

  std::function<void()> capture(Stream stream, const std::function<void()>& work) override {
    auto* handle = static_cast<cudaStream_t>(stream.handle);
    const auto graph = std::make_shared<Graph>();
    check(cudaStreamBeginCapture(handle, cudaStreamCaptureModeThreadLocal), "cudaStreamBeginCapture");
    work();
    check(cudaStreamEndCapture(handle, &graph->graph), "cudaStreamEndCapture");
    check(cudaGraphInstantiate(&graph->executable, graph->graph, 0), "cudaGraphInstantiate");
    return [graph, handle] { check(cudaGraphLaunch(graph->executable, handle), "cudaGraphLaunch"); };
  }

  int64_t free_bytes() override {
    size_t free = 0;
    size_t total = 0;
    check(cudaMemGetInfo(&free, &total), "cudaMemGetInfo");
    return static_cast<int64_t>(free);
  }

 private:
  CudaDevice device_;
  std::vector<cudaStream_t> streams_;
};

}  // namespace

bool has_cuda_gpu() {
  int num_devices = 0;
  return cudaGetDeviceCount(&num_devices) == cudaSuccess && num_devices > 0;
}

std::unique_ptr<Gpu> make_cuda_gpu() { return std::make_unique<CudaGpu>(); }

}  // namespace isthmus::gpu
