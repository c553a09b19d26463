// The time that the program waits for each unit's reductions, as far as it waits by Work::wait().
#pragma once

#include <cstdint>
#include <map>
#include <mutex>
#include <optional>

namespace isthmus::torch_backend {

// Thread-safe.
class Exposure {
 public:
  // A reduction of the unit took so long, beginning with its start by the worker.
  void add_run(uint64_t unit, double seconds) {
    const std::lock_guard lock(mutex_);
    units_[unit].run_s += seconds;
  }
  // A caller was blocked so long by a reduction. Zero: it was done already.
  void add_wait(uint64_t unit, double seconds) {
    const std::lock_guard lock(mutex_);
    units_[unit].wait_s += seconds;
    units_[unit].was_waited_for = true;
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

 private:
  struct Unit {
    double run_s = 0;
    double wait_s = 0;
    bool was_waited_for = false;
  };
  std::mutex mutex_;
  std::map<uint64_t, Unit> units_;
};

}  // namespace isthmus::torch_backend
