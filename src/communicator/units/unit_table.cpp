#include "communicator/units/unit_table.h"

#include <algorithm>

#include "communicator/units/unit.h"
#include "isthmus/error.h"

namespace isthmus {

UnitPtr UnitTable::find(const UnitKey& key) {
  ++num_questions_;
  const auto found = units_.find(key);
  if (found == units_.end()) {
    return nullptr;
  }
  found->second.last_use = num_questions_;
  return found->second.unit;
}

UnitPtr UnitTable::find_or_add(const UnitKey& key) {
  UnitPtr unit = find(key);
  if (unit == nullptr && (!full() || make_room())) {
    unit = make_unit(key);
    units_.emplace(key, Entry{unit, num_questions_});
  }
  return unit;
}

void UnitTable::put(const UnitPtr& unit) {
  ISTHMUS_CHECK(Error, units_.contains(unit->key) || !full(), "unit \"", unit->key.name,
                "\": cannot load its state, since ", units_.size(), " units have one already (max_units)");
  units_.insert_or_assign(unit->key, Entry{unit, num_questions_});
}

std::vector<UnitPtr> UnitTable::all() const {
  std::vector<UnitPtr> units;
  units.reserve(units_.size());
  for (const auto& [key, entry] : units_) {
    units.push_back(entry.unit);
  }
  return units;
}

bool UnitTable::make_room() {
  const auto by_use = [](const auto& a, const auto& b) { return a.second.last_use < b.second.last_use; };
  const auto oldest = std::ranges::min_element(units_, by_use);
  if (oldest == units_.end() || num_questions_ - oldest->second.last_use <= 2 * static_cast<uint64_t>(max_units_)) {
    return false;
  }
  oldest->second.unit->counts_as_dropped = true;
  units_.erase(oldest);
  return true;
}

}  // namespace isthmus
