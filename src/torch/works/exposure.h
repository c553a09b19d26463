// Counts the time that the program waits for calls in two tiers, if it waits by Work::wait().
#pragma once

#include <mutex>

namespace isthmus::torch_backend {

// Thread-safe.
class Exposure {
 public:
  // Adds the time that a call took from its start on the worker.
  void add_run(double seconds) {
    const std::lock_guard lock(mutex_);
    totals_.run_s += seconds;
  }
  // Adds the time that a call blocked a caller; 0 if the call was done already.
  void add_wait(double seconds) {
    const std::lock_guard lock(mutex_);
    totals_.wait_s += seconds;
  }

  struct Seconds {
    double run_s = 0;
    double wait_s = 0;
  };
  // Returns the seconds of all calls since the last reset_totals().
  Seconds totals() {
    const std::lock_guard lock(mutex_);
    return totals_;
  }
  void reset_totals() {
    const std::lock_guard lock(mutex_);
    totals_ = {};
  }

 private:
  std::mutex mutex_;
  Seconds totals_;
};

}  // namespace isthmus::torch_backend
