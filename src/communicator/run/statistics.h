// What a communicator did: counters, timings and the records of its units, behind one lock.
#pragma once

#include <cstdint>
#include <deque>
#include <map>
#include <memory>
#include <mutex>

#include "communicator/units/reduction_plan.h"
#include "isthmus/device.h"
#include "isthmus/stats.h"

namespace isthmus {

class Run;

// The memory that a communicator holds.
struct MemoryUse {
  int64_t num_units = 0;
  int64_t residual_bytes = 0;
  int64_t replica_bytes = 0;
  int64_t scratch_bytes = 0;
  int64_t num_dropped = 0;  // residuals lost so far because their unit lost its place
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

  // Adds a finished collective. plan: null for a gather. weights: the unit whose weights were gathered; null: none.
  void record(const Run& run, const ReductionPlan* plan, const UnitKey* weights, const MemoryUse& memory);
  void add_timing(Timing timing);
  void count_skipped_step();
  void count_dropped(int64_t num_units);
  void show_memory(int64_t num_units, int64_t residual_bytes);

  Stats snapshot();
  void reset();

 private:
  // Counters of one unit's reductions. `error` never resets; members with `_before` hold its values at the last reset.
  struct UnitRecord {
    UnitStats stats;
    std::shared_ptr<const SquaredError> error;
    double given_before = 0;
    double dropped_before = 0;
  };

  void add_timings();  // under mutex_
  // The record, with the run's counts added; null if there are too many. Under mutex_.
  UnitRecord* record_of(const Run& run, const UnitKey& key);
  void record_unit(const Run& run, const ReductionPlan& plan);  // under mutex_

  Device& device_;
  const int64_t max_units_;
  std::mutex mutex_;  // guards what follows
  Stats stats_;
  std::deque<Timing> timings_;  // timings whose events have not passed yet
  std::map<uint64_t, UnitRecord> unit_records_;
  int64_t dropped_seen_ = 0;  // of MemoryUse::num_dropped
};

}  // namespace isthmus
