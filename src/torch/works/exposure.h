// The time that the program waits for calls in two tiers, as far as it waits by Work::wait().
#pragma once

#include <mutex>

namespace isthmus::torch_backend {

// Thread-safe.
class Exposure {
 public:
  // A call took so long, beginning with its start by the worker.
  void add_run(double seconds) {
    const std::lock_guard lock(mutex_);
    totals_.run_s += seconds;
  }
  // A caller was blocked so long by a call. Zero: it was done already.
  void add_wait(double seconds) {
    const std::lock_guard lock(mutex_);
    totals_.wait_s += seconds;
  }

  struct Seconds {
    double run_s = 0;
    double wait_s = 0;
  };
  // The seconds of all calls since the last reset_totals().
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
