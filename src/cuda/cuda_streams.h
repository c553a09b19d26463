// CUDA streams. Only source files that call CUDA's runtime include this.
#pragma once

#include <map>
#include <memory>
#include <mutex>
#include <utility>
#include <vector>

#include "cuda/cuda_calls.h"

namespace isthmus {

// A stream that never waits for the legacy default stream.
class OwnedStream {
 public:
  OwnedStream(int ordinal, int priority) {
    const CurrentDevice current(ordinal);
    check_cuda(cudaStreamCreateWithPriority(&stream_, cudaStreamNonBlocking, priority), "cudaStreamCreateWithPriority",
               ordinal);
  }
  ~OwnedStream() { cudaStreamDestroy(stream_); }
  OwnedStream(const OwnedStream&) = delete;
  OwnedStream& operator=(const OwnedStream&) = delete;

  cudaStream_t get() const { return stream_; }

 private:
  cudaStream_t stream_ = nullptr;
};

// Streams of lanes are never destroyed; the next device reuses them. torch's allocator, once told of a stream
// (record_stream), records events on it when memory is freed, however late.
struct LanePool {
  std::mutex mutex;
  std::map<std::pair<int, int>, std::vector<std::unique_ptr<OwnedStream>>> unused;  // by ordinal and priority
};

inline LanePool& lane_pool() {
  static auto* const pool = new LanePool;
  return *pool;
}

// Holds a stream of the pool while it lives.
class LaneStream {
 public:
  LaneStream(int ordinal, int priority) : kind_(ordinal, priority) {
    {
      const std::lock_guard lock(lane_pool().mutex);
      auto& unused = lane_pool().unused[kind_];
      if (!unused.empty()) {
        stream_ = std::move(unused.back());
        unused.pop_back();
        return;
      }
    }
    stream_ = std::make_unique<OwnedStream>(ordinal, priority);
  }
  ~LaneStream() {
    const std::lock_guard lock(lane_pool().mutex);
    lane_pool().unused[kind_].push_back(std::move(stream_));
  }
  LaneStream(const LaneStream&) = delete;
  LaneStream& operator=(const LaneStream&) = delete;

  cudaStream_t get() const { return stream_->get(); }

 private:
  std::pair<int, int> kind_;
  std::unique_ptr<OwnedStream> stream_;
};

}  // namespace isthmus
