#include "base/threads.h"

#include <condition_variable>
#include <memory>
#include <mutex>
#include <system_error>
#include <thread>
#include <utility>

namespace isthmus {
namespace {

struct Progress {
  explicit Progress(size_t num_actions) : num_running(num_actions) {}

  void run(std::function<void()> action) {
    try {
      action();
    } catch (const std::exception&) {
      // the other actions must run, too
    }
    action = nullptr;  // frees what the action owns before the caller goes on
    const std::lock_guard lock(mutex);
    --num_running;
    changed.notify_all();
  }

  std::mutex mutex;
  std::condition_variable changed;
  size_t num_running;  // guarded by `mutex`
};

}  // namespace

bool run_in_threads(std::vector<std::function<void()>> actions, std::chrono::milliseconds patience) {
  const auto progress = std::make_shared<Progress>(actions.size());
  std::vector<std::function<void()>> without_thread;
  for (std::function<void()>& action : actions) {
    // The thread alone owns the action, so that what ends with it does not end here, where nobody may wait for it.
    const auto owned = std::make_shared<std::function<void()>>(std::move(action));
    try {
      std::thread([progress, owned] { progress->run(std::exchange(*owned, nullptr)); }).detach();
    } catch (const std::system_error&) {  // the process may be out of threads
      without_thread.push_back(std::move(*owned));
    }
  }
  for (std::function<void()>& action : without_thread) {
    progress->run(std::move(action));
  }
  std::unique_lock lock(progress->mutex);
  return progress->changed.wait_for(lock, patience, [&] { return progress->num_running == 0; });
}

}  // namespace isthmus
