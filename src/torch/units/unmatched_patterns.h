// Globs of the option `units` that match no unit: a mistyped one would change nothing, or leave everything exact,
// unseen.
#pragma once

#include <functional>
#include <string>

#include "isthmus/unit.h"

namespace isthmus::torch_backend {

// Where warnings go. Called without locks by threads that make a group's calls. Set once, before the first group.
void set_warning_function(std::function<void(const std::string& text)> function);

// A reduction of the unit begins in a group whose option `units` is this. Warns once for each value of the option, when
// a unit comes for the third time: all units have come by then. One value serves all groups of the process, as a glob
// may be meant for the units of another one. Any thread may call it.
void look_for_unmatched_patterns(const std::string& units, const UnitKey& unit);

}  // namespace isthmus::torch_backend
