// CUDA streams and events, which are reused: making one costs more than recording it. Only source files that call
// CUDA's runtime include this.
#pragma once

#include <atomic>
#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <utility>
#include <vector>

#include "cuda/cuda_calls.h"
#include "isthmus/device.h"

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

// The events of one device, for any thread.
class CudaEventPool {
 public:
  // flags: cudaEventDefault, or cudaEventDisableTiming for events that only order streams.
  CudaEventPool(int ordinal, unsigned flags) : ordinal_(ordinal), flags_(flags) {}
  ~CudaEventPool() {
    for (const cudaEvent_t event : free_) {
      cudaEventDestroy(event);
    }
  }
  CudaEventPool(const CudaEventPool&) = delete;
  CudaEventPool& operator=(const CudaEventPool&) = delete;

  bool times() const { return (flags_ & cudaEventDisableTiming) == 0; }

  cudaEvent_t take() {
    {
      const std::lock_guard lock(mutex_);
      if (!free_.empty()) {
        const cudaEvent_t event = free_.back();
        free_.pop_back();
        return event;
      }
    }
    const CurrentDevice current(ordinal_);
    cudaEvent_t event = nullptr;
    check_cuda(cudaEventCreateWithFlags(&event, flags_), "cudaEventCreateWithFlags", ordinal_);
    return event;
  }
  void give_back(cudaEvent_t event) {
    const std::lock_guard lock(mutex_);
    free_.push_back(event);
  }

 private:
  const int ordinal_;
  const unsigned flags_;
  std::mutex mutex_;  // guards what follows
  std::vector<cudaEvent_t> free_;
};

// Borrows an event from a pool. An earlier borrower may have recorded it; `state` says whether this one has.
class CudaEvent final : public Event {
 public:
  enum class State : uint8_t { kNew, kRecorded, kCaptured };  // kCaptured: recorded into a graph

  explicit CudaEvent(std::shared_ptr<CudaEventPool> pool) : pool_(std::move(pool)), event_(pool_->take()) {}
  ~CudaEvent() override { pool_->give_back(event_); }
  CudaEvent(const CudaEvent&) = delete;
  CudaEvent& operator=(const CudaEvent&) = delete;

  static CudaEvent& of(const EventPtr& event) { return static_cast<CudaEvent&>(*event); }

  cudaEvent_t get() const { return event_; }
  bool has_time() const { return state_ == State::kRecorded && pool_->times(); }
  State state() const { return state_; }
  void set_state(State state) { state_ = state; }

 private:
  std::shared_ptr<CudaEventPool> pool_;
  cudaEvent_t event_;
  std::atomic<State> state_{State::kNew};
};

}  // namespace isthmus
