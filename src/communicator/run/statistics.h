// What a communicator did: counters, timings and the records of its units, behind one lock.
#pragma once

#include <cstdint>
#include <deque>
#include <map>
#include <memory>
#include <mutex>
#include <string>

#include "communicator/units/reduction_plan.h"
#include "isthmus/device.h"
#include "isthmus/stats.h"

namespace isthmus {

class Run;

// Memory that a communicator holds.
struct MemoryUse {
  int64_t num_units = 0;
  int64_t residual_bytes = 0;
  int64_t replica_bytes = 0;
  int64_t scratch_bytes = 0;
  int64_t num_dropped = 0;  // residuals that went with their unit, so far
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

  // At most twice as many have records: reductions, and gathers of weights.
  Statistics(Device& device, int64_t max_units) : device_(device), max_units_(max_units) {}

  // Adds a collective that is done. plan: of a reduction; null: of a gather. weights: whose were gathered; null:
  // nobody's.
  void record(const Run& run, const ReductionPlan* plan, const UnitKey* weights, const MemoryUse& memory);
  // Adds what is known later of a gather of weights on a GPU. carried: between nodes, by the host.
  void add_crossing(const UnitKey& unit, const WeightStats& weights, int64_t coded_elements, int64_t packet_bytes,
                    Traffic carried);
  void add_timing(Timing timing);
  // The end of a step of units of these owners. If its result was thrown away, the elements that lossy codecs sent in
  // it are counted as skipped.
  void end_step(bool skipped, const Owners& owners);
  void count_dropped(int64_t num_units);
  void show_memory(int64_t num_units, int64_t residual_bytes);

  Stats snapshot();
  void reset();

 private:
  // Counters of one unit's reductions. `error` covers all of them; `_before` are its values at the last reset.
  struct UnitRecord {
    UnitStats stats;
    std::shared_ptr<const SquaredError> error;
    double given_before = 0;
    double dropped_before = 0;
  };

  void add_timings();  // under mutex_
  // Null: there are too many already. Under mutex_.
  UnitRecord* find_or_add_record(const UnitKey& key);
  // With what the run adds to it. Under mutex_.
  UnitRecord* record_of(const Run& run, const UnitKey& key);
  void record_unit(const Run& run, const ReductionPlan& plan);  // under mutex_

  Device& device_;
  const int64_t max_units_;
  std::mutex mutex_;  // guards what follows
  Stats stats_;
  std::deque<Timing> timings_;  // whose events have not passed yet
  std::map<uint64_t, UnitRecord> unit_records_;
  std::map<uint64_t, int64_t> sent_elements_;  // by lossy codecs since the last step ended, by owner
  int64_t dropped_seen_ = 0;                   // of MemoryUse::num_dropped
};

}  // namespace isthmus
