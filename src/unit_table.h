// The state that belongs to units: residuals and steps.
#pragma once

#include <cstdint>
#include <unordered_map>

#include "isthmus/communicator.h"
#include "scratch.h"

namespace isthmus {

struct Unit {
  uint64_t hash = 0;
  uint64_t step = 0;  // compressed reductions so far; equal on all ranks
  Buffer residual;    // float32; empty if the codec keeps none
  AlignedMemory residual_memory;
};

// At most `max_units` units; none is ever evicted. Not thread-safe.
class UnitTable {
 public:
  explicit UnitTable(int64_t max_units) : max_units_(max_units) {}

  // The state of `key`; made with a residual of `residual_elements` zeros when first asked for. Null if it is new and
  // the table is full. The pointer stays valid.
  Unit* find_or_add(const UnitKey& key, int64_t residual_elements);

  int64_t size() const { return static_cast<int64_t>(units_.size()); }
  int64_t residual_bytes() const { return residual_bytes_; }

 private:
  struct Hash {
    size_t operator()(const UnitKey& key) const { return key.hash(); }
  };
  int64_t max_units_;
  int64_t residual_bytes_ = 0;
  std::unordered_map<UnitKey, Unit, Hash> units_;
};

}  // namespace isthmus
