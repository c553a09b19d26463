#include "communicator/units/unit_table.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <limits>
#include <utility>

#include "isthmus/error.h"

namespace isthmus {
namespace {

// Sets the hash of the unit's key. On a GPU it counts from the next packets of each use on.
void set_hash(Device& device, Unit& unit) {
  unit.hash = unit.key.hash();
  if (unit.contexts != nullptr) {
    for (int i = 0; i < kNumPacketUses; ++i) {
      const auto use = static_cast<PacketUse>(i);
      device.set_context(unit.contexts.get() + i, context_of(unit.hash, unit.step, use), device.lane(lane_of(use)));
    }
  }
}

Unit make_unit(Device& device, const UnitKey& key, uint64_t step) {
  Unit unit;
  unit.key = key;
  unit.step = step;
  if (!device.is_host()) {  // one context for each use
    unit.contexts =
        std::static_pointer_cast<DeviceContext>(device.allocate(int64_t{kNumPacketUses} * sizeof(DeviceContext)));
  }
  set_hash(device, unit);
  return unit;
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

// Throws Error for the key of a unit that a group of `num_ranks` cannot have.
void check_key(const UnitKey& key, int num_ranks) {
  constexpr int64_t kMostElements = int64_t{1} << 56;  // sizes in bytes, and rounded up, are then numbers, too
  const int64_t num_rows = key.collective == Collective::kAllReduce ? 1 : num_ranks;
  ISTHMUS_CHECK(Error,
                key.collective != Collective::kAllGather && key.num_elements > 0 && key.num_elements <= kMostElements &&
                    key.num_elements % num_rows == 0 && accumulate_dtype(key.dtype) == DataType::kFloat32,
                "unit \"", key.name, "\": cannot load the state of a ", to_string(key.collective), " of ",
                key.num_elements, " elements of ", to_string(key.dtype), " over ", num_ranks, " ranks");
  const int64_t row = key.sections == nullptr ? key.num_elements / num_rows : key.sections->row_elements();
  ISTHMUS_CHECK(Error, row == key.num_elements / num_rows, "unit \"", key.name,
                "\": cannot load a state whose parameters have ", row, " elements in each of ", num_rows, " rows of ",
                key.num_elements);
}

// num_elements: what this group's residual has.
void check_loadable(const UnitKey& key, const char* which, ConstBuffer from, int64_t num_elements) {
  if (from.num_elements == 0) {
    return;
  }
  ISTHMUS_CHECK(Error, from.dtype == DataType::kFloat32 && from.num_elements == num_elements, "unit \"", key.name,
                "\": cannot load a ", which, " of ", from.num_elements, " elements of ", to_string(from.dtype),
                " where this group has ", num_elements, " of float32");
  const float* values = from.as<float>();
  ISTHMUS_CHECK(Error,
                std::all_of(values, values + from.num_elements, [](float value) { return std::isfinite(value); }),
                "unit \"", key.name, "\": cannot load a ", which, " that holds NaN or Inf");
}

}  // namespace

void Unit::follow_scale(Device& device, double new_scale) {
  if (scale != 0 && scale != new_scale) {
    pieces.multiply(device, scale / new_scale);
  }
  scale = new_scale;
}

const Unit* UnitTable::find(const UnitKey& key) const {
  const auto found = units_.find(key.identity());
  return found == units_.end() ? nullptr : &found->second;
}

Unit* UnitTable::find_or_add(const UnitKey& key, const SetOnAllRanks& on_all) {
  const UnitKey identity = key.identity();
  if (const auto found = units_.find(identity); found != units_.end()) {
    return &used(found->second, key);
  }
  if (full() && now_ <= full_until_) {
    return nullptr;
  }
  if (const auto earlier = renamed(key); earlier != units_.end()) {
    auto node = units_.extract(earlier);
    node.key() = identity;
    Unit& unit = units_.insert(std::move(node)).position->second;
    const UnitKey reduced = std::exchange(unit.key, key);
    if (key.sections != nullptr) {  // its residuals belong to what it reduced last
      unit.key.num_elements = reduced.num_elements;
      unit.key.layout = reduced.layout;
      unit.key.sections = reduced.sections;
    }
    set_hash(device_, unit);
    return &used(unit, key);
  }
  if (full() && !make_room(on_all)) {
    return nullptr;
  }
  Unit& unit = units_.emplace(identity, make_unit(device_, key, first_step_)).first->second;
  statistics_.memory.num_units = size();
  return &used(unit, key);
}

Unit* UnitTable::find_with_residual(const UnitKey& key) {
  const auto found = units_.find(key.identity());
  const bool is_wanted = found != units_.end() && (found->second.has_residual() || found->second.has_parked());
  return is_wanted ? &used(found->second, key) : nullptr;
}

Unit& UnitTable::used(Unit& unit, const UnitKey& key) {
  unit.key.owner = key.owner;
  unit.last_use = now_;
  unit.is_forgotten = false;
  if (unit.has_residual() || unit.has_parked()) {
    const int64_t bytes_before = unit.residual_bytes();
    for (Residual* const residual : unit.both()) {
      residual->revive(device_, key);
    }
    residual_bytes_ += unit.residual_bytes() - bytes_before;
  }
  return unit;
}

// Skips DDP's buckets, whose layouts are given: they share one owner, and each bucket is a unit of its own.
UnitTable::Units::iterator UnitTable::renamed(const UnitKey& key) {
  const UnitKey identity = key.identity();
  return std::find_if(units_.begin(), units_.end(), [&](const auto& entry) {
    const auto& [other, unit] = entry;
    return key.owner != 0 && unit.key.owner == key.owner && other.layout == 0 && other.name != key.name &&
           other.num_elements == identity.num_elements && other.dtype == key.dtype &&
           other.collective == key.collective;
  });
}

bool UnitTable::make_room(const SetOnAllRanks& on_all) {
  const auto oldest = std::min_element(
      units_.begin(), units_.end(), [](const auto& a, const auto& b) { return a.second.last_use < b.second.last_use; });
  full_until_ = oldest->second.last_use + 2 * static_cast<uint64_t>(options_.max_units);
  if (now_ <= full_until_) {
    if (!on_all) {
      return false;
    }
    std::vector<uint8_t> forgotten;
    for (const auto& [identity, unit] : units_) {
      forgotten.push_back(unit.is_forgotten ? 1 : 0);
    }
    const std::vector<uint8_t> everywhere = on_all(forgotten);
    auto goes = everywhere.begin();
    std::erase_if(units_, [&goes](const auto& /*entry*/) { return *goes++ != 0; });
    statistics_.memory.num_units = size();
    full_until_ = full() ? full_until_ : 0;
    return !full();
  }
  const int64_t bytes = oldest->second.residual_bytes();
  count_dropped(bytes > 0 ? 1 : 0);
  residual_bytes_ -= bytes;
  units_.erase(oldest);
  return true;
}

void UnitTable::follow_key(Unit& unit, const UnitKey& key, bool needs_residual) {
  const int64_t bytes_before = unit.residual_bytes();
  if (key.sections != nullptr && unit.key.layout != key.layout) {
    move_residuals(unit, key, needs_residual);
  }
  if (needs_residual && !unit.has_residual()) {
    make_residuals(unit, key);
  }
  residual_bytes_ += unit.residual_bytes() - bytes_before;
}

void UnitTable::make_residuals(Unit& unit, const UnitKey& key) {
  const auto [pieces_elements, result_elements] = sizes_of(key);
  unit.pieces.make(device_, key, pieces_elements);
  unit.result.make(device_, key, result_elements);
}

// Moves the unit's residuals to the parameters that this key reduces.
void UnitTable::move_residuals(Unit& unit, const UnitKey& key, bool needs_residual) {
  const ResidualSizes sizes = sizes_of(key);
  std::array<std::vector<ResidualPart>, 2> from;
  std::array<DeviceMemory, 2> memory;  // alive until the values have moved
  for (const bool of_result : {false, true}) {
    Residual& residual = *unit.both()[of_result];
    from[of_result] = parts_of(tiers_, unit.key, residual.values, of_result);
    memory[of_result] = std::move(residual.memory);
    residual.values = {nullptr, of_result ? sizes.result_elements : sizes.pieces_elements, DataType::kFloat32};
    const std::vector<ResidualPart> to = parts_of(tiers_, key, residual.values, of_result);
    const auto arrives = [&to](const ResidualPart& part) { return overlap(part, to); };
    needs_residual = needs_residual || std::ranges::any_of(from[of_result], arrives) ||
                     std::ranges::any_of(residual.parked, arrives, &ParkedPart::part);
  }
  if (needs_residual) {
    make_residuals(unit, key);
  } else {
    unit.pieces.values = unit.result.values = {};
  }
  for (const bool of_result : {false, true}) {
    Residual& residual = *unit.both()[of_result];
    move_parts(device_, device_.lane(residual.lane), from[of_result], parts_of(tiers_, key, residual.values, of_result),
               residual.parked);
  }
  unit.key = key;
  set_hash(device_, unit);
}

void UnitTable::drop_residuals(Unit& unit) {
  for (Residual* const residual : unit.both()) {
    residual_bytes_ -= residual->values.bytes();
    residual->values = {};
    residual->memory = nullptr;
  }
}

void UnitTable::load(const UnitState& state) {
  const UnitKey& key = state.key;
  check_key(key, tiers_.world_size());
  const auto found = units_.find(key.identity());
  ISTHMUS_CHECK(Error, found != units_.end() || !full(), "unit \"", key.name, "\": cannot load its state, since ",
                size(), " units have one already (max_units)");
  ISTHMUS_CHECK(Error, std::isfinite(state.scale), "unit \"", key.name, "\": cannot load the scale ", state.scale);
  const ResidualSizes sizes = sizes_of(key);
  check_loadable(key, "residual", state.residual, sizes.pieces_elements);
  check_loadable(key, "result residual", state.result_residual, sizes.result_elements);
  Unit unit = make_unit(device_, key, state.step);
  unit.scale = state.scale;
  if (state.residual.num_elements + state.result_residual.num_elements > 0) {
    make_residuals(unit, key);
  }
  const auto copy = [this](ConstBuffer from, Buffer to) { device_.write(from, to.slice(0, from.num_elements)); };
  copy(state.residual, unit.pieces.values);
  copy(state.result_residual, unit.result.values);
  for (const ParkedState& parked : state.parked) {
    check_loadable(key, "part of a residual", parked.values, parked.values.num_elements);
    ISTHMUS_CHECK(Error,
                  parked.begin >= 0 && parked.begin <= std::numeric_limits<int64_t>::max() - parked.values.num_elements,
                  "unit \"", key.name, "\": cannot load a part of a residual that begins at ", parked.begin);
    Buffer values{nullptr, parked.values.num_elements, DataType::kFloat32};
    DeviceMemory memory = device_.allocate(values.bytes());
    values.data = memory.get();
    device_.write(parked.values, values);
    Residual& residual = parked.of_result ? unit.result : unit.pieces;
    residual.parked.push_back({{parked.piece, parked.parameter, parked.begin, values}, std::move(memory)});
  }
  unit.last_use = now_;
  residual_bytes_ += unit.residual_bytes() - (found != units_.end() ? found->second.residual_bytes() : 0);
  units_.insert_or_assign(key.identity(), std::move(unit));
  statistics_.memory.num_units = size();
}

std::vector<UnitState> UnitTable::states() const {
  std::vector<UnitState> states;
  states.reserve(units_.size());
  const auto readable = [](Buffer residual) { return residual.data != nullptr ? residual : Buffer{}; };
  for (const auto& [identity, unit] : units_) {
    UnitState& state = states.emplace_back(UnitState{unit.key, step_of(device_, unit), unit.scale,
                                                     readable(unit.pieces.values), readable(unit.result.values)});
    for (const Residual* const residual : unit.both()) {
      for (const ParkedPart& one : residual->parked) {
        if (one.memory != nullptr) {
          state.parked.push_back(
              {residual == &unit.result, one.part.piece, one.part.parameter, one.part.begin, one.part.values});
        }
      }
    }
  }
  return states;
}

void UnitTable::scale_residuals(double factor, const Owners& owners) {
  ISTHMUS_CHECK(Error, std::isfinite(factor) && factor > 0, "cannot scale residuals by ", factor,
                ": expected a finite number above 0");
  for (auto& [identity, unit] : units_) {
    if (includes(owners, unit.key.owner)) {
      unit.pieces.multiply(device_, factor);
      unit.result.multiply(device_, factor);
    }
  }
}

void UnitTable::begin_step(std::optional<uint64_t> step, const Owners& owners) {
  first_step_ = step.value_or(first_step_);
  for (auto& [identity, unit] : units_) {
    if (!includes(owners, unit.key.owner)) {
      continue;
    }
    if (step) {
      unit.step = *step;
      set_hash(device_, unit);
    }
    KeptUnit& kept = unit.kept ? *unit.kept : unit.kept.emplace();
    kept.step = unit.step;
    copy_residuals(device_, unit, kept);
  }
}

// Residuals stay where they are in memory: a captured graph refers to it. A unit's step is taken back only where the
// host has counted it.
int64_t UnitTable::undo_step(const Owners& owners) {
  int64_t num_lost = 0;
  for (auto& [identity, unit] : units_) {
    if (!includes(owners, unit.key.owner)) {
      continue;
    }
    const int64_t bytes_before = unit.residual_bytes();
    const uint64_t owner = unit.key.owner;
    const uint64_t step_before = unit.step;
    if (unit.kept) {
      copy_residuals(device_, *unit.kept, unit);
      unit.step = unit.kept->step;
    } else {
      num_lost += bytes_before > 0 ? 1 : 0;
      static_cast<Residuals&>(unit) = Residuals{.key = unit.key};
    }
    unit.key.owner = owner;
    if (unit.step != step_before || unit.hash != unit.key.hash()) {
      set_hash(device_, unit);
    }
    residual_bytes_ += unit.residual_bytes() - bytes_before;
  }
  return num_lost;
}

int64_t UnitTable::skip_step(const Owners& owners) {
  statistics_.add(&Stats::skipped_steps, 1);
  return undo_step(owners);
}

void UnitTable::clear(const Owners& owners) {
  std::erase_if(units_, [&](const auto& entry) {
    const bool goes = includes(owners, entry.second.key.owner);
    residual_bytes_ -= goes ? entry.second.residual_bytes() : 0;
    return goes;
  });
  statistics_.memory.num_units = size();
  full_until_ = 0;
}

void UnitTable::forget(const std::set<uint64_t>& owners) {
  const auto free = [](Buffer& residual, DeviceMemory& memory) {
    residual.data = nullptr;
    memory = nullptr;
  };
  for (auto& [identity, unit] : units_) {
    if (!owners.contains(unit.key.owner)) {
      continue;
    }
    unit.is_forgotten = true;
    unit.kept.reset();
    residual_bytes_ -= unit.residual_bytes();
    for (Residual* const residual : unit.both()) {
      free(residual->values, residual->memory);
      for (ParkedPart& one : residual->parked) {
        free(one.part.values, one.memory);
      }
    }
  }
}

}  // namespace isthmus
