// Threads that make connections or end them, and that may hang.
#pragma once

#include <chrono>
#include <functional>
#include <future>
#include <thread>
#include <type_traits>
#include <utility>
#include <vector>

namespace isthmus {

// Longer than communicators take to end when nothing blocks them.
inline constexpr std::chrono::seconds kAbortPatience{5};

// Runs all actions at once, each in its own thread, and returns whether all ended within `patience`. Actions that did
// not are abandoned; they own what they refer to. Exceptions of actions are dropped. Any thread may call it.
bool run_in_threads(std::vector<std::function<void()>> actions, std::chrono::milliseconds patience);

// Returns what make() returns, or throws what it throws; it runs in a thread of its own. check() is called again and
// again meanwhile: once it throws, this throws the same, and the thread is abandoned with what it may still make.
// Throws std::system_error where this process may have no more threads.
template <typename Make, typename Check>
std::invoke_result_t<Make> made_in_thread(Make make, const Check& check) {
  constexpr std::chrono::milliseconds kCheckPause(20);
  std::packaged_task<std::invoke_result_t<Make>()> task(std::move(make));
  auto made = task.get_future();
  std::thread(std::move(task)).detach();
  while (made.wait_for(kCheckPause) != std::future_status::ready) {
    check();
  }
  return made.get();
}

}  // namespace isthmus
