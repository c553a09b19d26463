// How one reduction is done.
#pragma once

#include <cstdint>
#include <optional>

#include "codec/tagc/flat.h"
#include "communicator/units/unit_table.h"
#include "isthmus/codec.h"
#include "isthmus/device_context.h"
#include "isthmus/unit.h"

namespace isthmus {

// ReductionPlanner makes it, alike on all ranks. It points to objects of the planner and the caller, and is valid until
// the collective ends.
struct ReductionPlan {
  const UnitKey* key = nullptr;
  Unit* unit = nullptr;  // null: the reduction is plain and has no state
  Codec* codec = nullptr;
  Codec* result_codec = nullptr;         // for the result of an all-reduce
  TagcFlat* tagc_flat = nullptr;         // tiers=flat; null: plain
  std::optional<Reason> why_exact = {};  // nothing: the codec is lossy
  bool drains = false;                   // sends the unit's residuals and leaves none
  bool measures = false;                 // whether the codec's error is measured
  uint64_t hash = 0;                     // of the unit
  uint64_t step = 0;
  DeviceContext* contexts = nullptr;  // the unit's, by PacketUse; on a GPU
  double scale = 1;                   // by which the sum of pieces is multiplied

  bool is_lossy() const { return !why_exact; }
  bool has_residual() const { return unit != nullptr && unit->has_residual(); }
};

}  // namespace isthmus
