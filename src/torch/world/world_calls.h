// Calls the world backends of a process group's sides, one call at a time or several at once.
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

// The threads that make the group's calls call this. `mutex_` is held for moments, never while a world backend runs; no
// other lock is taken under it.
class WorldCalls {
 public:
  // options: their timeout applies to calls that have none. watcher: makes the Watchers of Works.
  WorldCalls(const Group& group, c10::intrusive_ptr<BackendOptions> options, CallCounters& counters, WatcherFor watcher)
      : group_(group), options_(std::move(options)), counters_(counters), watcher_(std::move(watcher)) {}

  // Calls the side's world backend and watches its Work. During coalescing, the Work joins it.
  WorkPtr forward(Side& side, const std::function<WorkPtr(c10d::Backend&)>& call);
  // Does the same for an operation in two tiers.
  WorkPtr submit(Side& side, TwoTierCall call);

  // Makes end_coalescing() return one Work for all calls since. Does not throw: torch would silently drop later
  // collectives.
  void start_coalescing();
  WorkPtr end_coalescing();

  // Names the group in torch's flight recorder, which shows calls of the world backends. Called before each collective;
  // only the first call has an effect.
  void describe(const std::vector<Side*>& sides, const std::string& group);

  std::chrono::milliseconds timeout_or_default(std::chrono::milliseconds timeout) const;
  void set_timeout(std::chrono::milliseconds timeout);

 private:
  WorkPtr issued(WorkPtr work, bool in_group);
  bool open_group(c10d::Backend& world);  // returns whether one is open now; opens one only while coalescing
  void close_group();                     // starts the group's operations

  const Group& group_;
  const c10::intrusive_ptr<BackendOptions> options_;  // its timeout is guarded by mutex_
  CallCounters& counters_;
  const WatcherFor watcher_;
  std::once_flag described_;

  mutable std::mutex mutex_;  // guards the members below
  bool coalescing_ = false;
  c10d::Backend* open_group_ = nullptr;  // the world backend that collects operations to start together; else null
  std::vector<WorkPtr> coalesced_;
};

}  // namespace isthmus::torch_backend
