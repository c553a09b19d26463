// Times of work on a stream of a CUDA device, with none of its data in the L2 cache.
#pragma once

#include <functional>
#include <vector>

#include "tests/cpp/gpu/device/cuda_gpu.h"

namespace isthmus::gpu {

// The times of several repetitions, in microseconds.
struct Times {
  double median = 0;
  double lower = 0;  // quartiles
  double upper = 0;

  static Times of(std::vector<double> values);
};

class Timer {
 public:
  Timer();
  ~Timer();
  Timer(const Timer&) = delete;
  Timer& operator=(const Timer&) = delete;

  cudaStream_t stream() const { return stream_; }

  // The time of the device for what `work` enqueues on stream() or on streams that it joins again: as a captured graph,
  // so that the host's launches do not count. Before each repetition a memset goes through more memory than the L2
  // holds.
  Times device_us(int repetitions, const std::function<void()>& work);

 private:
  cudaStream_t stream_ = nullptr;
  cudaEvent_t begin_ = nullptr;
  cudaEvent_t end_ = nullptr;
  void* flushed_ = nullptr;
  size_t flushed_bytes_ = 0;
};

}  // namespace isthmus::gpu
