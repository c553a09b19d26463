// How one reduction is done.
#pragma once

#include <cstdint>
#include <string>

#include "auto/unit_choice.h"
#include "codec/tagc/flat.h"
#include "communicator/units/unit_table.h"
#include "isthmus/codec.h"
#include "isthmus/device_context.h"
#include "isthmus/unit.h"

namespace isthmus {

// The reason of exact reductions of units whose codec is chosen; the choice has the details. Compared by address.
inline constexpr char kChosenExact[] = "chosen to be exact";

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
  // Why this codec, for people.
  std::string reason() const {
    const bool is_chosen = unit != nullptr && unit->choice != nullptr;
    if (is_chosen && (why_exact == nullptr || why_exact == kChosenExact)) {
      return unit->choice->choice.reason;
    }
    return why_exact == nullptr ? "" : why_exact;
  }
};

}  // namespace isthmus
