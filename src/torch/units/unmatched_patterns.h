// Warns about globs of the option `units` that match no unit: a mistyped one would silently change nothing, or leave
// everything exact.
#pragma once

#include <functional>
#include <string>

#include "isthmus/unit.h"

namespace isthmus::torch_backend {

// Where warnings go. Threads that make a group's calls call it, without locks. Python sets it once, before the first
// group.
inline auto& warning_function = *new std::function<void(const std::string& text)>;

// Called when a reduction of the unit begins in a group with this value of the option `units`. Warns once for each
// value, when a unit comes for the third time: by then all units have come. All groups of the process share a value, as
// a glob may be meant for another group's units. Any thread may call it.
void look_for_unmatched_patterns(const std::string& units, const UnitKey& unit);

}  // namespace isthmus::torch_backend
