// How one reduction is done.
#pragma once

#include <cstdint>

#include "codec/tagc/flat.h"
#include "communicator/units/unit_table.h"
#include "isthmus/codec.h"
#include "isthmus/device_context.h"
#include "isthmus/unit.h"

namespace isthmus {

// Made by ReductionPlanner, alike on all ranks. Its pointers refer to objects of the planner and the caller, and are
// valid until the collective ends.
struct ReductionPlan {
  const UnitKey* key = nullptr;
  Unit* unit = nullptr;  // null: there is no state, and everything is plain
  Codec* codec = nullptr;
  Codec* result_codec = nullptr;    // for the result of an all-reduce
  TagcFlat* tagc_flat = nullptr;    // tiers=flat; null: plain
  const char* why_exact = nullptr;  // a string literal; null: the codec is lossy
  bool drains = false;              // sends what the unit's residuals hold, and leaves none
  bool measures = false;            // the error of the codec
  uint64_t hash = 0;                // of the unit
  uint64_t step = 0;
  DeviceContext* contexts = nullptr;  // of the unit, by PacketUse; on a GPU
  double scale = 1;                   // of the sum of pieces

  bool is_lossy() const { return why_exact == nullptr; }
  bool has_residual() const { return unit != nullptr && unit->has_residual(); }
};

}  // namespace isthmus
