#include "communicator/run/statistics.h"

#include <algorithm>
#include <optional>
#include <utility>

#include "communicator/run/run.h"

namespace isthmus {

void Statistics::record(const Run& run, const ReductionPlan* plan, const UnitKey* weights, const MemoryUse& memory) {
  const std::lock_guard lock(mutex_);
  stats_.collectives[static_cast<size_t>(run.collective())] += run.counters;
  stats_.codec += run.codec_counts;
  stats_.peer_waits += run.peer_waits;
  if (plan != nullptr) {
    if (plan->why_exact) {
      ++stats_.exact_calls[*plan->why_exact];
    } else {
      ++stats_.compressed_calls;
    }
    record_unit(run, *plan);
  }
  stats_.weights += run.weights;
  if (UnitRecord* record = weights == nullptr ? nullptr : record_of(run, *weights); record != nullptr) {
    record->stats.codec = run.as_differences ? "delta" : "none";
    record->stats.reason = run.reason;
  }
  stats_.num_units = memory.num_units;
  stats_.residual_bytes = memory.residual_bytes;
  stats_.dropped_residuals += memory.num_dropped - std::exchange(dropped_seen_, memory.num_dropped);
  stats_.weights.replica_bytes = memory.replica_bytes;
  stats_.scratch_bytes = memory.scratch_bytes;
  add_timings();
}

Statistics::UnitRecord* Statistics::record_of(const Run& run, const UnitKey& key) {
  const uint64_t hash = key.hash();
  const auto found = unit_records_.find(hash);
  if (found == unit_records_.end() && static_cast<int64_t>(unit_records_.size()) >= 2 * max_units_) {
    return nullptr;
  }
  UnitRecord& record = unit_records_[hash];
  record.stats.name = key.name;
  record.stats.collective = key.collective;
  record.stats.num_elements = key.num_elements;
  record.stats.dtype = key.dtype;
  ++record.stats.calls;
  record.stats.unchanged_calls += run.weights.unchanged;
  record.stats.coded_elements += run.coded_elements;
  record.stats.packet_bytes += run.packet_bytes;
  return &record;
}

void Statistics::record_unit(const Run& run, const ReductionPlan& plan) {
  UnitRecord* const record = record_of(run, *plan.key);
  if (record == nullptr) {
    return;
  }
  UnitStats& stats = record->stats;
  stats.codec = plan.codec->name();
  stats.settings = plan.unit != nullptr ? plan.unit->settings.codec_settings() : "";
  stats.reason = plan.why_exact;
  if (plan.unit != nullptr && plan.unit->error != nullptr) {
    record->error = plan.unit->error;
  }
}

void Statistics::add_timing(Timing timing) {
  const std::lock_guard lock(mutex_);
  timings_.push_back(std::move(timing));
}

// Adds the timings whose events have passed. Steps on different lanes may end out of order.
void Statistics::add_timings() {
  const auto is_known = [this](const Timing& timing) {
    const std::optional<double> seconds = device_.seconds_between(timing.begin, timing.end);
    stats_.collectives[static_cast<size_t>(timing.collective)].*timing.seconds += seconds.value_or(0);
    return seconds.has_value();
  };
  timings_.erase(std::remove_if(timings_.begin(), timings_.end(), is_known), timings_.end());
}

void Statistics::count_skipped_step() {
  const std::lock_guard lock(mutex_);
  ++stats_.skipped_steps;
}

void Statistics::count_dropped(int64_t num_units) {
  const std::lock_guard lock(mutex_);
  stats_.dropped_residuals += num_units;
}

void Statistics::show_memory(int64_t num_units, int64_t residual_bytes) {
  const std::lock_guard lock(mutex_);
  stats_.num_units = num_units;
  stats_.residual_bytes = residual_bytes;
}

Stats Statistics::snapshot() {
  const CodecCounts on_device = device_.codec_counts();
  const std::lock_guard lock(mutex_);
  add_timings();
  Stats stats = stats_;
  stats.codec += on_device;
  for (const auto& [hash, record] : unit_records_) {
    if (record.stats.calls == 0) {
      continue;
    }
    UnitStats& unit = stats.units[hash] = record.stats;
    if (record.error != nullptr) {
      unit.given_squares = record.error->given - record.given_before;
      unit.dropped_squares = record.error->dropped - record.dropped_before;
    }
  }
  return stats;
}

void Statistics::reset() {
  device_.reset_codec_counts();
  const std::lock_guard lock(mutex_);
  Stats fresh;
  fresh.num_units = stats_.num_units;
  fresh.residual_bytes = stats_.residual_bytes;
  fresh.scratch_bytes = stats_.scratch_bytes;
  fresh.weights.replica_bytes = stats_.weights.replica_bytes;
  stats_ = std::move(fresh);
  for (auto& [hash, record] : unit_records_) {
    record.stats = {};
    if (record.error != nullptr) {
      record.given_before = record.error->given;
      record.dropped_before = record.error->dropped;
    }
  }
  timings_.clear();
}

}  // namespace isthmus
