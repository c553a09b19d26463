// The time that the program waits for calls in two tiers, as far as it waits by Work::wait().
#pragma once

#include <cstdint>
#include <map>
#include <mutex>
#include <optional>

namespace isthmus::torch_backend {

// Thread-safe.
class Exposure {
 public:
  // A call took so long, beginning with its start by the worker. unit: that shares are taken of, if any.
  void add_run(std::optional<uint64_t> unit, double seconds) {
    const std::lock_guard lock(mutex_);
    totals_.run_s += seconds;
    if (unit) {
      units_[*unit].run_s += seconds;
    }
  }
  // A caller was blocked so long by a call. Zero: it was done already.
  void add_wait(std::optional<uint64_t> unit, double seconds) {
    const std::lock_guard lock(mutex_);
    totals_.wait_s += seconds;
    if (unit) {
      units_[*unit].wait_s += seconds;
      units_[*unit].was_waited_for = true;
    }
  }
  // Seconds waited over seconds run since the last call. Nothing where no caller used wait(): callers that use the
  // Future, such as DDP, may wait or not.
  std::optional<double> take_share(uint64_t unit) {
    const std::lock_guard lock(mutex_);
    const auto found = units_.extract(unit);
    if (found.empty() || !found.mapped().was_waited_for || found.mapped().run_s <= 0) {
      return std::nullopt;
    }
    return found.mapped().wait_s / found.mapped().run_s;
  }

  struct Seconds {
    double run_s = 0;
    double wait_s = 0;
  };
  // Of all calls since the last reset_totals().
  Seconds totals() {
    const std::lock_guard lock(mutex_);
    return totals_;
  }
  void reset_totals() {
    const std::lock_guard lock(mutex_);
    totals_ = {};
  }

 private:
  struct Unit : Seconds {
    bool was_waited_for = false;
  };
  std::mutex mutex_;
  Seconds totals_;
  std::map<uint64_t, Unit> units_;
};

}  // namespace isthmus::torch_backend
