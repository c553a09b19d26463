// The state that belongs to units: residuals and steps.
#pragma once

#include <cstdint>
#include <map>
#include <vector>

#include "isthmus/unit.h"
#include "scratch.h"

namespace isthmus {

// How many elements the residuals of one unit have on this rank.
struct ResidualSizes {
  int64_t residual_elements = 0;
  int64_t result_residual_elements = 0;
};

struct Unit {
  uint64_t hash = 0;
  uint64_t step = 0;       // compressed reductions so far; equal on all ranks
  double scale = 0;        // of the last of them; 0: none yet
  Buffer residual;         // float32; empty if the codec keeps none
  Buffer result_residual;  // float32; of the own chunk of an all-reduce's result; empty for others
  AlignedMemory residual_memory;
  AlignedMemory result_residual_memory;

  // Keeps scale * residual as it was: what was held back under another scale counts as much as before.
  void follow_scale(double new_scale);
  void scale_residuals(double factor);
  int64_t residual_bytes() const { return residual.bytes() + result_residual.bytes(); }
};

// At most `max_units` units; none is evicted. Residuals are finite, always. Not thread-safe.
class UnitTable {
 public:
  explicit UnitTable(int64_t max_units) : max_units_(max_units) {}

  // The state of `key`; made with residuals of zeros when first asked for. Null if it is new and the table is full. The
  // pointer stays valid until the unit is loaded or cleared. Throws Error that names unit and bytes if there is no
  // memory for the residuals.
  Unit* find_or_add(const UnitKey& key, ResidualSizes sizes);

  // Puts a copy of `state` in the place of the unit of its key. Throws Error if its residuals are neither empty nor of
  // `sizes`, or hold NaN or Inf, or if the unit is new and the table is full; the table is then as before.
  void load(const UnitState& state, ResidualSizes sizes);

  std::vector<UnitState> states() const;  // by key
  void scale_residuals(double factor);
  void clear();

  int64_t size() const { return static_cast<int64_t>(units_.size()); }
  int64_t residual_bytes() const { return residual_bytes_; }

 private:
  bool full() const { return size() >= max_units_; }

  int64_t max_units_;
  int64_t residual_bytes_ = 0;
  std::map<UnitKey, Unit> units_;
};

}  // namespace isthmus
