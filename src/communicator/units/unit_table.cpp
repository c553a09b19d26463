#include "communicator/units/unit_table.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <new>
#include <tuple>
#include <utility>
#include <vector>

#include "base/stable_hash.h"
#include "isthmus/error.h"
#include "kernels/block/device.h"

namespace isthmus {
namespace {

// Makes zeros. They are written on `lane`, which uses them.
std::pair<Buffer, DeviceMemory> make_zeros(Device& device, const UnitKey& key, int64_t num_elements, Lane lane) {
  Buffer residual{nullptr, num_elements, DataType::kFloat32};
  DeviceMemory memory;
  if (num_elements > 0) {
    try {
      memory = device.allocate(residual.bytes());
    } catch (const std::bad_alloc&) {
      throw Error(
          detail::concatenate("unit \"", key.name, "\": no memory for a residual of ", residual.bytes(), " bytes"));
    }
    residual.data = memory.get();
    device.clear(residual, device.lane(lane));
  }
  return {residual, std::move(memory)};
}

void make_residuals(Device& device, const UnitKey& key, ResidualSizes sizes, Unit& unit) {
  const auto make = [&](Residual& residual, int64_t num_elements) {
    std::tie(residual.values, residual.memory) = make_zeros(device, key, num_elements, residual.lane);
    if (num_elements > 0 && residual.guard == nullptr) {
      constexpr int64_t kBytes = sizeof(ResidualGuard);
      residual.guard = std::static_pointer_cast<ResidualGuard>(device.allocate(kBytes));
      device.clear({residual.guard.get(), kBytes, DataType::kByte}, device.lane(residual.lane));
    }
  };
  make(unit.pieces, sizes.pieces_elements);
  make(unit.result, sizes.result_elements);
}

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

// Gives a forgotten unit residuals of zeros again.
void revive(Device& device, const UnitKey& key, Unit& unit) {
  for (Residual* const residual : unit.both()) {
    const auto make = [&](Buffer& values, DeviceMemory& memory) {
      if (values.num_elements > 0 && memory == nullptr) {
        std::tie(values, memory) = make_zeros(device, key, values.num_elements, residual->lane);
      }
    };
    make(residual->values, residual->memory);
    for (ParkedPart& parked : residual->parked) {
      make(parked.part.values, parked.memory);
    }
  }
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
    multiply(device, pieces, scale / new_scale);
  }
  scale = new_scale;
}

const Unit* UnitTable::find(const UnitKey& key) const {
  const auto found = units_.find(key.identity());
  return found == units_.end() ? nullptr : &found->second;
}

Unit* UnitTable::find_or_add(const UnitKey& key, uint64_t now, const SetOnAllRanks& on_all) {
  const UnitKey identity = key.identity();
  if (const auto found = units_.find(identity); found != units_.end()) {
    return &used(found->second, key, now);
  }
  if (full() && now <= full_until_) {
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
    set_hash(*device_, unit);
    return &used(unit, key, now);
  }
  if (full() && !make_room(now, on_all)) {
    return nullptr;
  }
  return &used(units_.emplace(identity, make_unit(*device_, key, first_step_)).first->second, key, now);
}

Unit* UnitTable::find_with_residual(const UnitKey& key, uint64_t now) {
  const auto found = units_.find(key.identity());
  const bool is_wanted = found != units_.end() && (found->second.has_residual() || found->second.has_parked());
  return is_wanted ? &used(found->second, key, now) : nullptr;
}

Unit& UnitTable::used(Unit& unit, const UnitKey& key, uint64_t now) {
  unit.key.owner = key.owner;
  unit.last_use = now;
  unit.is_forgotten = false;
  if (unit.has_residual() || unit.has_parked()) {
    const int64_t bytes_before = unit.residual_bytes();
    revive(*device_, key, unit);
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

bool UnitTable::make_room(uint64_t now, const SetOnAllRanks& on_all) {
  const auto oldest = std::min_element(
      units_.begin(), units_.end(), [](const auto& a, const auto& b) { return a.second.last_use < b.second.last_use; });
  full_until_ = oldest->second.last_use + 2 * static_cast<uint64_t>(max_units_);
  if (now <= full_until_) {
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
    full_until_ = full() ? full_until_ : 0;
    return !full();
  }
  const int64_t bytes = oldest->second.residual_bytes();
  num_dropped_ += bytes > 0 ? 1 : 0;
  residual_bytes_ -= bytes;
  units_.erase(oldest);
  return true;
}

void UnitTable::follow_key(Unit& unit, const UnitKey& key, const ResidualStretches& before,
                           const ResidualStretches& now, ResidualSizes sizes, bool needs_residual) {
  const int64_t bytes_before = unit.residual_bytes();
  struct Source {
    std::vector<ResidualPart> parts;
    DeviceMemory memory;  // alive until the values have moved
  };
  const bool had_residual = unit.has_residual();
  const auto take = [&](Residual& residual, const std::vector<ResidualStretch>& stretches, int64_t num_elements) {
    Source source;
    if (had_residual) {
      source.parts = parts_of(residual.values, stretches, *unit.key.sections);
    }
    source.memory = std::move(residual.memory);
    residual.values = {nullptr, num_elements, DataType::kFloat32};
    return source;
  };
  const Source pieces = take(unit.pieces, before.pieces, sizes.pieces_elements);
  const Source result = take(unit.result, before.result, sizes.result_elements);
  const auto is_needed = [&](const Residual& residual, const std::vector<ResidualStretch>& stretches,
                             const Source& source) {
    const std::vector<ResidualPart> to = parts_of(residual.values, stretches, *key.sections);
    const auto arrives = [&to](const ResidualPart& part) { return overlap(part, to); };
    return std::ranges::any_of(residual.parked, arrives, &ParkedPart::part) ||
           std::ranges::any_of(source.parts, arrives);
  };
  if (needs_residual || is_needed(unit.pieces, now.pieces, pieces) || is_needed(unit.result, now.result, result)) {
    make_residuals(*device_, key, sizes, unit);
  } else {
    unit.pieces.values = unit.result.values = {};
  }
  const auto move = [&](const Source& source, Residual& residual, const std::vector<ResidualStretch>& stretches) {
    std::vector<ResidualPart> to;
    if (residual.values.num_elements > 0) {
      to = parts_of(residual.values, stretches, *key.sections);
    }
    move_parts(*device_, device_->lane(residual.lane), source.parts, to, residual.parked);
  };
  move(pieces, unit.pieces, now.pieces);
  move(result, unit.result, now.result);
  unit.key = key;
  set_hash(*device_, unit);
  residual_bytes_ += unit.residual_bytes() - bytes_before;
}

void UnitTable::add_residuals(Unit& unit, const UnitKey& key, ResidualSizes sizes) {
  make_residuals(*device_, key, sizes, unit);
  residual_bytes_ += unit.pieces.values.bytes() + unit.result.values.bytes();
}

void UnitTable::drop_residuals(Unit& unit) {
  for (Residual* const residual : unit.both()) {
    residual_bytes_ -= residual->values.bytes();
    residual->values = {};
    residual->memory = nullptr;
  }
}

void UnitTable::load(const UnitState& state, ResidualSizes sizes, uint64_t now) {
  const auto found = units_.find(state.key.identity());
  ISTHMUS_CHECK(Error, found != units_.end() || !full(), "unit \"", state.key.name, "\": cannot load its state, since ",
                size(), " units have one already (max_units)");
  ISTHMUS_CHECK(Error, std::isfinite(state.scale), "unit \"", state.key.name, "\": cannot load the scale ",
                state.scale);
  check_loadable(state.key, "residual", state.residual, sizes.pieces_elements);
  check_loadable(state.key, "result residual", state.result_residual, sizes.result_elements);
  Unit unit = make_unit(*device_, state.key, state.step);
  unit.scale = state.scale;
  if (state.residual.num_elements + state.result_residual.num_elements > 0) {
    make_residuals(*device_, state.key, sizes, unit);
  }
  const auto copy = [this](ConstBuffer from, Buffer to) { device_->write(from, to.slice(0, from.num_elements)); };
  copy(state.residual, unit.pieces.values);
  copy(state.result_residual, unit.result.values);
  for (const ParkedState& parked : state.parked) {
    check_loadable(state.key, "part of a residual", parked.values, parked.values.num_elements);
    ISTHMUS_CHECK(Error,
                  parked.begin >= 0 && parked.begin <= std::numeric_limits<int64_t>::max() - parked.values.num_elements,
                  "unit \"", state.key.name, "\": cannot load a part of a residual that begins at ", parked.begin);
    Buffer values{nullptr, parked.values.num_elements, DataType::kFloat32};
    DeviceMemory memory = device_->allocate(values.bytes());
    values.data = memory.get();
    device_->write(parked.values, values);
    Residual& residual = parked.of_result ? unit.result : unit.pieces;
    residual.parked.push_back({{parked.piece, parked.parameter, parked.begin, values}, std::move(memory)});
  }
  unit.last_use = now;
  residual_bytes_ += unit.residual_bytes() - (found != units_.end() ? found->second.residual_bytes() : 0);
  units_.insert_or_assign(state.key.identity(), std::move(unit));
}

std::vector<UnitState> UnitTable::states() const {
  std::vector<UnitState> states;
  states.reserve(units_.size());
  const auto readable = [](Buffer residual) { return residual.data != nullptr ? residual : Buffer{}; };
  for (const auto& [identity, unit] : units_) {
    UnitState& state = states.emplace_back(UnitState{unit.key, step_of(*device_, unit), unit.scale,
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
  for (auto& [identity, unit] : units_) {
    if (includes(owners, unit.key.owner)) {
      multiply(*device_, unit.pieces, factor);
      multiply(*device_, unit.result, factor);
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
      set_hash(*device_, unit);
    }
    KeptUnit& kept = unit.kept ? *unit.kept : unit.kept.emplace();
    kept.step = unit.step;
    copy_residuals(*device_, unit, kept);
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
      copy_residuals(*device_, *unit.kept, unit);
      unit.step = unit.kept->step;
    } else {
      num_lost += bytes_before > 0 ? 1 : 0;
      static_cast<Residuals&>(unit) = Residuals{.key = unit.key};
    }
    unit.key.owner = owner;
    if (unit.step != step_before || unit.hash != unit.key.hash()) {
      set_hash(*device_, unit);
    }
    residual_bytes_ += unit.residual_bytes() - bytes_before;
  }
  return num_lost;
}

void UnitTable::clear(const Owners& owners) {
  std::erase_if(units_, [&](const auto& entry) {
    const bool goes = includes(owners, entry.second.key.owner);
    residual_bytes_ -= goes ? entry.second.residual_bytes() : 0;
    return goes;
  });
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
