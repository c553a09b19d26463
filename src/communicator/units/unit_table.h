// The units that nobody holds: those of calls that are recognised anew each time.
#pragma once

#include <cstdint>
#include <map>
#include <vector>

#include "isthmus/unit.h"

namespace isthmus {

// At most `max_units` units, by their keys. A new one takes the place of one that was not asked for for long, which
// ranks that ask alike decide alike.
class UnitTable {
 public:
  explicit UnitTable(int64_t max_units) : max_units_(max_units) {}

  // Null if there is none.
  UnitPtr find(const UnitKey& key);
  // In a full table it takes the place of the unit that nobody has asked for for longest, if more than 2 max_units
  // questions have come since, whose residual is then counted as dropped; null if there is none.
  UnitPtr find_or_add(const UnitKey& key);
  // Puts in a unit, in place of one with its key. Throws Error if the table is full.
  void put(const UnitPtr& unit);
  void clear() { units_.clear(); }
  std::vector<UnitPtr> all() const;

 private:
  struct Entry {
    UnitPtr unit;
    uint64_t last_use;
  };
  bool full() const { return static_cast<int64_t>(units_.size()) >= max_units_; }
  bool make_room();

  const int64_t max_units_;
  uint64_t num_questions_ = 0;
  std::map<UnitKey, Entry> units_;
};

}  // namespace isthmus
