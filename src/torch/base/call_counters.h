// Counters of the calls of one process group.
#pragma once

#include <cstdint>
#include <map>
#include <mutex>
#include <string>

#include "isthmus/reason.h"
#include "torch/base/border.h"

namespace isthmus::torch_backend {

// Calls that a world backend carries, and what they send and receive over the border of this rank's node.
struct WorldCalls {
  int64_t calls = 0;
  BorderTraffic crossing;
};

// Any thread may call any method. One lock guards all counters; nothing else is locked under it.
class CallCounters {
 public:
  // Returns the number of the next collective; all devices share the count.
  uint64_t take_sequence_number() {
    const std::lock_guard lock(mutex_);
    return next_sequence_number_++;
  }
  uint64_t next_sequence_number() const {
    const std::lock_guard lock(mutex_);
    return next_sequence_number_;
  }

  void count_call(const char* call) {
    const std::lock_guard lock(mutex_);
    ++counts_.calls[call];
  }
  // Counts a reduction that goes to the world backend.
  void count_exact(Reason reason) {
    const std::lock_guard lock(mutex_);
    ++counts_.exact_calls[reason];
  }

  // Counts a call that a world backend has taken.
  void count_world(const char* call, BorderTraffic crossing) {
    const std::lock_guard lock(mutex_);
    WorldCalls& counted = counts_.world[call];
    ++counted.calls;
    counted.crossing += crossing;
  }

  struct Counts {
    std::map<std::string, int64_t> calls;
    std::map<std::string, WorldCalls> world;
    std::map<Reason, int64_t> exact_calls;
  };
  Counts counts() const {
    const std::lock_guard lock(mutex_);
    return counts_;
  }
  // Zeroes the counters, but not the sequence number.
  void reset() {
    const std::lock_guard lock(mutex_);
    counts_ = {};
  }

 private:
  mutable std::mutex mutex_;  // guards the members below
  uint64_t next_sequence_number_ = 0;
  Counts counts_;
};

}  // namespace isthmus::torch_backend
