// What a communicator did: counters, timings and the records of its units, behind one lock.
#pragma once

#include <atomic>
#include <cstdint>
#include <deque>
#include <map>
#include <memory>
#include <mutex>

#include "isthmus/device.h"
#include "isthmus/stats.h"

namespace isthmus {

class Run;

// What a communicator holds now. Its parts keep it up to date.
struct MemoryUse {
  std::atomic<int64_t> num_units = 0;
  std::atomic<int64_t> residual_bytes = 0;
  std::atomic<int64_t> replica_bytes = 0;
  std::atomic<int64_t> scratch_bytes = 0;
};

// All methods may be called by any thread. The device outlives it.
class Statistics {
 public:
  // A step of a collective on a GPU. Its seconds are known once both events have passed.
  struct Timing {
    EventPtr begin;
    EventPtr end;
    Collective collective;
    double CollectiveStats::*seconds;
  };

  // Keeps at most 2 * max_units records of units, since reductions and gathers of weights have records.
  Statistics(Device& device, int64_t max_units) : device_(device), max_units_(max_units) {}

  void record(const Run& run);  // a finished collective
  void add_timing(Timing timing);
  void add(int64_t Stats::*count, int64_t more);

  Stats snapshot();
  void reset();

  MemoryUse memory;

 private:
  // Counters of one unit's reductions. `error` never resets; members with `_before` hold its values at the last reset.
  struct UnitRecord {
    UnitStats stats;
    std::shared_ptr<const SquaredError> error;
    double given_before = 0;
    double dropped_before = 0;
  };

  // Under mutex_.
  void add_timings();
  void record_unit(const Run& run);

  Device& device_;
  const int64_t max_units_;
  std::mutex mutex_;  // guards what follows
  Stats stats_;
  std::deque<Timing> timings_;  // timings whose events have not passed yet
  std::map<uint64_t, UnitRecord> unit_records_;
};

}  // namespace isthmus
