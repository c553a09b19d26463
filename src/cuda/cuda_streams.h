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

// Lends a stream of this priority to a lane. It is never destroyed; a later lane reuses it. torch's allocator, once
// told of a stream (record_stream), records events on it when memory is freed, however late.
inline std::shared_ptr<OwnedStream> lend_lane_stream(int ordinal, int priority) {
  struct Pool {
    std::mutex mutex;
    std::map<std::pair<int, int>, std::vector<OwnedStream*>> unused;  // by ordinal and priority
  };
  static auto* const pool = new Pool;
  const auto give_back = [kind = std::pair(ordinal, priority)](OwnedStream* stream) {
    const std::lock_guard lock(pool->mutex);
    pool->unused[kind].push_back(stream);
  };
  {
    const std::lock_guard lock(pool->mutex);
    std::vector<OwnedStream*>& unused = pool->unused[{ordinal, priority}];
    if (!unused.empty()) {
      OwnedStream* const stream = unused.back();
      unused.pop_back();
      return {stream, give_back};
    }
  }
  return {new OwnedStream(ordinal, priority), give_back};
}

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
