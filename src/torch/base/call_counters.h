// Counters of the calls of one process group.
#pragma once

#include <cstdint>
#include <map>
#include <mutex>
#include <string>

namespace isthmus::torch_backend {

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
    ++calls_[call];
  }
  // Counts a reduction, or a gather with codec=auto, that goes to the world backend, by its reason.
  void count_exact(const char* reason) {
    const std::lock_guard lock(mutex_);
    ++exact_calls_[reason];
  }

  // Notes the type of a unit's elements; `unit` is a UnitKey::hash().
  void note_dtype(uint64_t unit, const char* dtype) {
    const std::lock_guard lock(mutex_);
    dtypes_[unit] = dtype;
  }

  std::map<std::string, int64_t> calls() const {
    const std::lock_guard lock(mutex_);
    return calls_;
  }
  std::map<std::string, int64_t> exact_calls() const {
    const std::lock_guard lock(mutex_);
    return exact_calls_;
  }
  std::map<uint64_t, std::string> dtypes() const {
    const std::lock_guard lock(mutex_);
    return dtypes_;
  }
  // Zeroes the counters, but not the sequence number and the types of units.
  void reset() {
    const std::lock_guard lock(mutex_);
    calls_.clear();
    exact_calls_.clear();
  }

 private:
  mutable std::mutex mutex_;  // guards the members below
  uint64_t next_sequence_number_ = 0;
  std::map<std::string, int64_t> calls_;
  std::map<std::string, int64_t> exact_calls_;
  std::map<uint64_t, std::string> dtypes_;
};

}  // namespace isthmus::torch_backend
