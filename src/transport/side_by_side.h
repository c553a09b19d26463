// Ends several connections at once.
#pragma once

#include <chrono>
#include <functional>
#include <vector>

namespace isthmus {

// Longer than communicators that nothing blocks take to end.
inline constexpr std::chrono::seconds kAbortPatience{5};

// Runs all actions at once, each in a thread of its own, and returns whether all have ended within `patience`. Those
// that have not are abandoned: they own what they refer to. An action's exceptions are dropped. From any thread.
bool run_side_by_side(std::vector<std::function<void()>> actions, std::chrono::milliseconds patience);

}  // namespace isthmus
