#include "communicator/run/statistics.h"

#include <algorithm>
#include <optional>
#include <utility>

#include "communicator/run/run.h"

namespace isthmus {

void Statistics::record(const Run& run) {
  const std::lock_guard lock(mutex_);
  stats_.collectives[static_cast<size_t>(run.collective())] += run.counters;
  stats_.codec += run.codec_counts;
  stats_.peer_waits += run.peer_waits;
  stats_.weights += run.weights;
  if (run.collective() != Collective::kAllGather) {
    ++(run.reason ? stats_.exact_calls[*run.reason] : stats_.compressed_calls);
  }
  if (run.record != nullptr) {
    record_unit(run, *run.record);
  }
  add_timings();
}

void Statistics::record_unit(const Run& run, UnitRecord& record) {
  UnitStats& stats = record.stats;
  if (stats.calls == 0 || record.settings != run.settings || stats.codec != run.codec) {
    stats.name = run.unit->name;
    stats.collective = run.unit->collective;
    stats.num_elements = run.unit->num_elements;
    stats.dtype = run.unit->dtype;
    stats.codec = run.codec;
    stats.settings = run.settings != nullptr ? run.settings->codec_settings() : "";
    record.settings = run.settings;
  }
  stats.reason = run.reason;
  ++stats.calls;
  stats.unchanged_calls += run.weights.unchanged;
  stats.coded_elements += run.coded_elements;
  stats.packet_bytes += run.packet_bytes;
  if (run.error != nullptr) {
    record.error = run.error;
  }
}

std::shared_ptr<UnitRecord> Statistics::record_of(uint64_t unit_hash) {
  const std::lock_guard lock(mutex_);
  if (static_cast<int64_t>(unit_records_.size()) >= 2 * max_units_) {
    std::erase_if(unit_records_, [](const auto& entry) { return entry.second.use_count() == 1; });
  }
  std::shared_ptr<UnitRecord>& record = unit_records_[unit_hash];
  if (record == nullptr) {
    record = std::make_shared<UnitRecord>();
  }
  return record;
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

void Statistics::add(int64_t Stats::*count, int64_t more) {
  const std::lock_guard lock(mutex_);
  stats_.*count += more;
}

Stats Statistics::snapshot() {
  const CodecCounts on_device = device_.codec_counts();
  const std::lock_guard lock(mutex_);
  add_timings();
  Stats stats = stats_;
  stats.codec += on_device;
  stats.num_units = memory->num_units;
  stats.dropped_residuals += memory->dropped_residuals;
  stats.residual_bytes = memory->residual_bytes;
  stats.weights.replica_bytes = memory->replica_bytes;
  stats.scratch_bytes = memory->scratch_bytes;
  for (const auto& [hash, record] : unit_records_) {
    if (record->stats.calls == 0) {
      continue;
    }
    UnitStats& unit = stats.units[hash] = record->stats;
    if (record->error != nullptr) {
      unit.given_squares = record->error->given - record->given_before;
      unit.dropped_squares = record->error->dropped - record->dropped_before;
    }
  }
  return stats;
}

void Statistics::reset() {
  device_.reset_codec_counts();
  const std::lock_guard lock(mutex_);
  stats_ = {};
  memory->dropped_residuals = 0;
  for (auto& [hash, record] : unit_records_) {
    record->stats = {};
    if (record->error != nullptr) {
      record->given_before = record->error->given;
      record->dropped_before = record->error->dropped;
    }
  }
  timings_.clear();
}

}  // namespace isthmus
