// Ends several connections at once.
#pragma once

#include <chrono>
#include <functional>
#include <vector>

namespace isthmus {

// Longer than communicators take to end when nothing blocks them.
inline constexpr std::chrono::seconds kAbortPatience{5};

// Runs all actions at once, each in its own thread, and returns whether all ended within `patience`. Actions that did
// not are abandoned; they own what they refer to. Exceptions of actions are dropped. Any thread may call it.
bool run_in_threads(std::vector<std::function<void()>> actions, std::chrono::milliseconds patience);

}  // namespace isthmus
