// What a communicator did: counters, timings and the records of its units, behind one lock.
#pragma once

#include <atomic>
#include <cstdint>
#include <deque>
#include <map>
#include <memory>
#include <mutex>

#include "isthmus/device.h"
#include "isthmus/options.h"
#include "isthmus/stats.h"

namespace isthmus {

class Run;

// What a communicator holds now. Its parts keep it up to date; units may outlive it.
struct MemoryUse {
  std::atomic<int64_t> num_units = 0;
  std::atomic<int64_t> residual_bytes = 0;
  std::atomic<int64_t> replica_bytes = 0;
  std::atomic<int64_t> scratch_bytes = 0;
  std::atomic<int64_t> dropped_residuals = 0;  // of units that gave way to others, since the last reset
};

// Counters of one unit's reductions, or gathers. `error` never resets; members with `_before` hold its values at the
// last reset.
struct UnitRecord {
  UnitStats stats;
  const Options* settings = nullptr;  // of the codec in `stats`
  std::shared_ptr<const SquaredError> error;
  double given_before = 0;
  double dropped_before = 0;
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

  // Of units that are gone it keeps at most 2 * max_units records.
  Statistics(Device& device, int64_t max_units) : device_(device), max_units_(max_units) {}

  void record(const Run& run);  // a finished collective
  void add_timing(Timing timing);
  void add(int64_t Stats::*count, int64_t more);
  // The record of the units with this hash.
  std::shared_ptr<UnitRecord> record_of(uint64_t unit_hash);

  Stats snapshot();
  void reset();

  const std::shared_ptr<MemoryUse> memory = std::make_shared<MemoryUse>();

 private:
  // Under mutex_.
  void add_timings();
  static void record_unit(const Run& run, UnitRecord& record);

  Device& device_;
  const int64_t max_units_;
  std::mutex mutex_;  // guards what follows
  Stats stats_;
  std::deque<Timing> timings_;                                    // timings whose events have not passed yet
  std::map<uint64_t, std::shared_ptr<UnitRecord>> unit_records_;  // by hash
};

}  // namespace isthmus
