// What a communicator keeps between collectives: units and statistics.
#include <cmath>
#include <utility>

#include "communicator/units/unit_table.h"
#include "isthmus/communicator.h"
#include "isthmus/error.h"

namespace isthmus {

std::vector<UnitState> Communicator::unit_states() const { return units_->states(); }

void Communicator::load_unit(const UnitState& state) {
  const UnitKey& key = state.key;
  const bool is_reduction = key.collective != Collective::kAllGather;
  const bool divisible = key.collective == Collective::kAllReduce || key.num_elements % map_.world_size() == 0;
  ISTHMUS_CHECK(Error,
                is_reduction && key.num_elements > 0 && divisible && accumulate_dtype(key.dtype) == DataType::kFloat32,
                "unit \"", key.name, "\": cannot load the state of a ", to_string(key.collective), " of ",
                key.num_elements, " elements of ", to_string(key.dtype), " over ", map_.world_size(), " ranks");
  units_->load(state, residual_sizes(key));
  show_units();
}

void Communicator::clear_units() {
  units_->clear();
  show_units();
}

void Communicator::scale_residuals(double factor) {
  ISTHMUS_CHECK(Error, std::isfinite(factor) && factor > 0, "cannot scale residuals by ", factor,
                ": expected a finite number above 0");
  units_->scale_residuals(factor);
}

void Communicator::count_step() { end_step(/*skipped=*/false); }

void Communicator::count_skipped_step() { end_step(/*skipped=*/true); }

void Communicator::end_step(bool skipped) {
  // After the results that were encoded before, too. What comes later passes the lane of pieces first.
  const Stream pieces = device_->lane(Lane::kEncode);
  device_->order(device_->lane(Lane::kDecode), pieces);
  device_->end_step(skipped, pieces);
  const std::lock_guard lock(mutex_);
  if (skipped) {
    ++stats_.skipped_steps;
    stats_.skipped_elements += sent_elements_;
  }
  sent_elements_ = 0;
}

void Communicator::show_units() {
  const std::lock_guard lock(mutex_);
  stats_.num_units = units_->size();
  stats_.residual_bytes = units_->residual_bytes();
}

Stats Communicator::stats() {
  const DeviceCodecCounts on_device = device_->codec_counts();
  const std::lock_guard lock(mutex_);
  add_timings();
  Stats stats = stats_;
  stats.codec += on_device.codec;
  stats.skipped_elements += on_device.skipped_elements;
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

void Communicator::reset_stats() {
  device_->reset_codec_counts();
  const std::lock_guard lock(mutex_);
  Stats fresh;
  fresh.num_units = stats_.num_units;
  fresh.residual_bytes = stats_.residual_bytes;
  fresh.scratch_bytes = stats_.scratch_bytes;
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
