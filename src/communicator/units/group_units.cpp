#include "communicator/units/group_units.h"

#include <algorithm>
#include <cmath>
#include <utility>

#include "base/rounding.h"
#include "isthmus/error.h"

namespace isthmus {
namespace {

// How many elements one unit's residuals have on this rank.
struct ResidualSizes {
  int64_t pieces_elements = 0;
  int64_t result_elements = 0;
};

// For a unit whose codec keeps residuals.
ResidualSizes residual_sizes(const NodeMap& map, bool is_flat, const UnitKey& key) {
  const bool is_all_reduce = key.collective == Collective::kAllReduce;
  if (map.num_nodes() == 1 || (is_flat && is_all_reduce)) {
    return {};
  }
  const int64_t chunk = divide_up(key.num_elements, map.world_size());
  return {is_flat ? key.num_elements : (map.num_nodes() - 1) * chunk, is_all_reduce ? chunk : 0};
}

// num_elements: what this group's residual has.
void check_residual(const UnitKey& key, const char* which, const std::vector<float>& from, int64_t num_elements) {
  ISTHMUS_CHECK(Error, from.empty() || static_cast<int64_t>(from.size()) == num_elements, "unit \"", key.name,
                "\": cannot load a ", which, " of ", from.size(), " elements where this group has ", num_elements);
  ISTHMUS_CHECK(Error, std::ranges::all_of(from, [](float value) { return std::isfinite(value); }), "unit \"", key.name,
                "\": cannot load a ", which, " that holds NaN or Inf");
}

// How many times the unit's pieces were encoded.
uint64_t step_of(Device& device, const Unit& unit) {
  if (unit.contexts == nullptr) {
    return unit.step;
  }
  DeviceContext context;
  const int64_t bytes = sizeof(context);
  device.read({unit.contexts.get(), bytes, DataType::kByte}, {&context, bytes, DataType::kByte});
  return context.step;
}

}  // namespace

void check_loadable(const NodeMap& map, const Options& options, const UnitState& state) {
  const UnitKey& key = state.key;
  constexpr int64_t kMostElements = int64_t{1} << 56;  // sizes in bytes, and rounded up, are then numbers, too
  const int64_t num_rows = key.collective == Collective::kAllReduce ? 1 : map.world_size();
  ISTHMUS_CHECK(Error,
                key.collective != Collective::kAllGather && key.num_elements > 0 && key.num_elements <= kMostElements &&
                    key.num_elements % num_rows == 0 && accumulate_dtype(key.dtype) == DataType::kFloat32,
                "unit \"", key.name, "\": cannot load the state of a ", to_string(key.collective), " of ",
                key.num_elements, " elements of ", to_string(key.dtype), " over ", map.world_size(), " ranks");
  ISTHMUS_CHECK(Error, std::isfinite(state.scale), "unit \"", key.name, "\": cannot load the scale ", state.scale);
  const ResidualSizes sizes = residual_sizes(map, options.is_flat(), key);
  check_residual(key, "residual", state.residual, sizes.pieces_elements);
  check_residual(key, "result residual", state.result_residual, sizes.result_elements);
}

void GroupUnits::require_own(const Unit& unit) const {
  ISTHMUS_CHECK(Error, unit.memory == nullptr || unit.memory == statistics_.memory, "unit \"", unit.key.name,
                "\" belongs to another communicator");
}

void GroupUnits::take(const UnitPtr& unit) {
  if (unit->memory != nullptr) {
    return;
  }
  if (units_.size() >= looked_through_at_) {
    std::erase_if(units_, [](const std::weak_ptr<Unit>& one) { return one.expired(); });
    looked_through_at_ = std::max(looked_through_at_, 2 * units_.size());
  }
  units_.push_back(unit);
  unit->memory = statistics_.memory;
  unit->record = statistics_.record_of(unit->hash);
  if (unit->loaded) {
    bring(*unit);
  }
}

// Brings what a checkpoint has loaded to the device.
void GroupUnits::bring(Unit& unit) {
  const UnitState loaded = *std::exchange(unit.loaded, std::nullopt);
  unit.step = loaded.step;
  give_state(unit);
  unit.scale = loaded.scale;
  if (!loaded.residual.empty() || !loaded.result_residual.empty()) {
    give_residuals(unit);
    const auto copy = [this](const std::vector<float>& from, Buffer to) {
      const auto num_elements = static_cast<int64_t>(from.size());
      device_.write({from.data(), num_elements, DataType::kFloat32}, to.slice(0, num_elements));
    };
    copy(loaded.residual, unit.pieces.values);
    copy(loaded.result_residual, unit.result.values);
  }
  if (has_begun_) {
    keep(unit);
  }
}

void GroupUnits::give_state(Unit& unit) {
  if (std::exchange(unit.has_state, true)) {
    return;
  }
  ++unit.memory->num_units;
  if (!device_.is_host()) {  // one context for each use
    unit.contexts =
        std::static_pointer_cast<DeviceContext>(device_.allocate(int64_t{kNumPacketUses} * sizeof(DeviceContext)));
  }
  unit.set_context(device_, unit.hash, first_step_.value_or(unit.step));
}

void GroupUnits::give_residuals(Unit& unit) {
  const auto [pieces_elements, result_elements] = residual_sizes(tiers_.map(), options_.is_flat(), unit.key);
  unit.make_residuals(device_, pieces_elements, result_elements);
}

// In the order of their keys, which is the same on all ranks.
std::vector<UnitPtr> GroupUnits::with_state(const Units& units) const {
  std::vector<UnitPtr> found;
  for (const std::weak_ptr<Unit>& one : units_) {
    UnitPtr unit = one.lock();
    if (unit != nullptr && unit->has_state && (!units || units->contains(unit.get()))) {
      found.push_back(std::move(unit));
    }
  }
  std::ranges::stable_sort(found, {}, [](const UnitPtr& unit) -> const UnitKey& { return unit->key; });
  return found;
}

std::vector<UnitState> GroupUnits::states() const {
  const auto copy = [this](ConstBuffer from) {
    std::vector<float> values(static_cast<size_t>(from.num_elements));
    if (!values.empty()) {
      device_.read(from, {values.data(), from.num_elements, DataType::kFloat32});
    }
    return values;
  };
  std::vector<UnitState> states;
  for (const UnitPtr& unit : with_state({})) {
    states.push_back(
        {unit->key, step_of(device_, *unit), unit->scale, copy(unit->pieces.values), copy(unit->result.values)});
  }
  return states;
}

UnitPtr GroupUnits::load(UnitState state) {
  check_loadable(tiers_.map(), options_, state);
  UnitPtr unit = make_unit(state.key);
  unit->loaded = std::move(state);
  take(unit);
  return unit;
}

void GroupUnits::scale_residuals(double factor, const Units& units) {
  ISTHMUS_CHECK(Error, std::isfinite(factor) && factor > 0, "cannot scale residuals by ", factor,
                ": expected a finite number above 0");
  for (const UnitPtr& unit : with_state(units)) {
    unit->multiply(device_, factor);
  }
}

void GroupUnits::keep(Unit& unit) {
  KeptStep& kept = unit.kept ? *unit.kept : unit.kept.emplace();
  kept.step = unit.step;
  kept.copy_from(device_, unit);
}

void GroupUnits::begin_step(std::optional<uint64_t> step, const Units& units) {
  has_begun_ = true;
  if (step) {
    first_step_ = step;
  }
  for (const UnitPtr& unit : with_state(units)) {
    if (step) {
      unit->set_context(device_, unit->packet_hash, *step);
    }
    keep(*unit);
  }
}

// Residuals stay where they are in memory: a captured graph refers to it. A unit's step is taken back only where the
// host has counted it.
int64_t GroupUnits::undo_step(const Units& units) {
  int64_t num_lost = 0;
  for (const UnitPtr& unit : with_state(units)) {
    const uint64_t step_before = unit->step;
    if (unit->kept) {
      statistics_.memory->residual_bytes -= unit->residual_bytes();
      unit->copy_from(device_, *unit->kept);
      statistics_.memory->residual_bytes += unit->residual_bytes();
      unit->step = unit->kept->step;
    } else {
      num_lost += unit->has_residual() ? 1 : 0;
      unit->drop_residuals();
      unit->scale = 0;
    }
    if (unit->step != step_before || unit->packet_hash != unit->hash) {
      unit->set_context(device_, unit->hash, unit->step);
    }
  }
  return num_lost;
}

int64_t GroupUnits::skip_step(const Units& units) {
  statistics_.add(&Stats::skipped_steps, 1);
  return undo_step(units);
}

}  // namespace isthmus
