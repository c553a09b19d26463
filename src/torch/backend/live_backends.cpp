#include "torch/backend/live_backends.h"

#include <pthread.h>

#include <algorithm>
#include <chrono>
#include <mutex>
#include <set>
#include <vector>

#include "torch/backend/backend.h"

namespace isthmus::torch_backend {
namespace {

// How long pending operations may go on when the interpreter exits.
constexpr std::chrono::milliseconds kExitPatience{2000};

// The backends that are not destroyed yet. The lock is held during a fork, so that the child gets a consistent set.
struct Live {
  std::mutex mutex;
  std::set<BackendIsthmus*> backends;
};

Live& live() {
  static auto* live = new Live;  // never destroyed: static objects of torch's own may hold backends until the end
  return *live;
}

// Omits backends that are being destroyed: their destructors wait for the lock, and nobody holds them any more.
std::vector<c10::intrusive_ptr<BackendIsthmus>> hold_live_backends() {
  const std::lock_guard lock(live().mutex);
  std::vector<c10::intrusive_ptr<BackendIsthmus>> held;
  for (BackendIsthmus* backend : live().backends) {
    if (auto* target = static_cast<BackendIsthmus*>(c10::raw::weak_intrusive_ptr::lock(backend))) {
      held.push_back(c10::intrusive_ptr<BackendIsthmus>::reclaim(target));
    }
  }
  return held;
}

// Runs in the child, after a fork.
void keep_live_backends_for_ever() {
  for (BackendIsthmus* backend : live().backends) {
    c10::raw::intrusive_ptr::incref(backend);
  }
  live().backends.clear();
  live().mutex.unlock();
}

}  // namespace

void add_live_backend(BackendIsthmus* backend) {
  const std::lock_guard lock(live().mutex);
  live().backends.insert(backend);
}

void remove_live_backend(BackendIsthmus* backend) {
  const std::lock_guard lock(live().mutex);
  live().backends.erase(backend);
}

void watch_forks() {
  static std::once_flag once;
  std::call_once(once, [] {
    pthread_atfork([] { live().mutex.lock(); }, [] { live().mutex.unlock(); }, keep_live_backends_for_ever);
  });
}

void shutdown_all() {
  using Clock = std::chrono::steady_clock;
  const auto deadline = Clock::now() + kExitPatience;
  for (const auto& backend : hold_live_backends()) {
    const auto left = std::chrono::duration_cast<std::chrono::milliseconds>(deadline - Clock::now());
    backend->shutdown_at_exit(std::max(left, std::chrono::milliseconds(0)));
  }
}

}  // namespace isthmus::torch_backend
