// Warns about globs of the option `units` that match no unit: a mistyped one would silently change nothing, or leave
// everything exact.
#pragma once

#include <functional>
#include <string>

#include "isthmus/unit.h"

namespace isthmus::torch_backend {

// Sets where warnings go. Threads that make a group's calls call the function, without locks. Set once, before the
// first group.
void set_warning_function(std::function<void(const std::string& text)> function);

// Called when a reduction of the unit begins in a group with this value of the option `units`. Warns once for each
// value, when a unit comes for the third time: by then all units have come. All groups of the process share a value, as
// a glob may be meant for another group's units. Any thread may call it.
void look_for_unmatched_patterns(const std::string& units, const UnitKey& unit);

}  // namespace isthmus::torch_backend
