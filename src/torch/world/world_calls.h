// How a process group calls the world backends of its sides, one by one or several at once.
#pragma once

#include <chrono>
#include <functional>
#include <mutex>
#include <string>
#include <utility>
#include <vector>

#include "torch/base/call_counters.h"
#include "torch/base/group.h"
#include "torch/base/options.h"
#include "torch/sides/side.h"
#include "torch/works/work.h"

namespace isthmus::torch_backend {

// Called by the threads that make the group's calls. `mutex_` is held for moments, never while a world backend runs; no
// other lock is taken under it.
class WorldCalls {
 public:
  // options: their timeout is that of calls without one. watcher: makes the Watchers of Works.
  WorldCalls(const Group& group, c10::intrusive_ptr<BackendOptions> options, CallCounters& counters, WatcherFor watcher)
      : group_(group), options_(std::move(options)), counters_(counters), watcher_(std::move(watcher)) {}

  // Calls the side's world backend. Its Work is watched, and belongs to the coalescing under way, if there is one.
  WorkPtr forward(Side& side, const std::function<WorkPtr(c10d::Backend&)>& call);
  // As forward(), for an operation in two tiers.
  WorkPtr submit(Side& side, TwoTierCall call);

  // Later calls become one Work, that of end_coalescing(). Does not throw: torch would silently drop later collectives.
  void start_coalescing();
  WorkPtr end_coalescing();

  // Names the group in torch's flight recorder, which shows calls of the world backends. Called before each collective;
  // only the first call names it.
  void describe(const std::vector<Side*>& sides, const std::string& group);

  std::chrono::milliseconds timeout_or_default(std::chrono::milliseconds timeout) const;
  void set_timeout(std::chrono::milliseconds timeout);

 private:
  WorkPtr issued(WorkPtr work, bool in_group);
  bool open_group(c10d::Backend& world);  // whether one is open now: only while coalescing
  void close_group();                     // starts its operations

  const Group& group_;
  const c10::intrusive_ptr<BackendOptions> options_;  // its timeout is guarded by mutex_
  CallCounters& counters_;
  const WatcherFor watcher_;
  std::once_flag described_;

  mutable std::mutex mutex_;  // guards what follows
  bool coalescing_ = false;
  c10d::Backend* open_group_ = nullptr;  // the world backend that starts operations together, while it does
  std::vector<WorkPtr> coalesced_;
};

}  // namespace isthmus::torch_backend
