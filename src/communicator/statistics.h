// What a communicator did: counters, timings and the records of its units, behind one lock.
#pragma once

#include <cstdint>
#include <deque>
#include <map>
#include <memory>
#include <mutex>
#include <string>

#include "communicator/plan/reduction_plan.h"
#include "isthmus/device.h"
#include "isthmus/stats.h"

namespace isthmus {

class Run;

// Memory that a communicator holds.
struct MemoryUse {
  int64_t num_units = 0;
  int64_t residual_bytes = 0;
  int64_t scratch_bytes = 0;
};

// All methods may be called by any thread. The device outlives it.
class Statistics {
 public:
  // A step of a collective on a GPU: its seconds are known once both events have passed.
  struct Timing {
    EventPtr begin;
    EventPtr end;
    Collective collective;
    double CollectiveStats::*seconds;
  };

  // At most max_units units have records.
  Statistics(Device& device, int64_t max_units) : device_(device), max_units_(max_units) {}

  // Adds a collective that is done. plan: of a reduction; null: of a gather.
  void record(const Run& run, const ReductionPlan* plan, const MemoryUse& memory);
  void add_timing(Timing timing);
  // The end of a step. Its elements that lossy codecs kept are counted as skipped if its result was thrown away.
  void end_step(bool skipped);
  void show_memory(int64_t num_units, int64_t residual_bytes);

  Stats snapshot();
  void reset();

 private:
  // What is known of a unit's reductions. The error is what was measured since the beginning; `before`, up to the last
  // reset.
  struct UnitRecord {
    UnitStats stats;
    std::shared_ptr<const SquaredError> error;
    double given_before = 0;
    double dropped_before = 0;
  };

  void add_timings();                                           // under mutex_
  void record_unit(const Run& run, const ReductionPlan& plan);  // under mutex_

  Device& device_;
  const int64_t max_units_;
  std::mutex mutex_;  // guards what follows
  Stats stats_;
  std::deque<Timing> timings_;  // not known yet
  std::map<uint64_t, UnitRecord> unit_records_;
  int64_t sent_elements_ = 0;  // by lossy codecs since the last step ended
};

}  // namespace isthmus
