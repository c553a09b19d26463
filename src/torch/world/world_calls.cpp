#include "torch/world/world_calls.h"

#include <utility>

namespace isthmus::torch_backend {

WorkPtr WorldCalls::forward(Side& side, const std::function<WorkPtr(c10d::Backend&)>& call) {
  bool in_group = false;
  const WorkPtr work = side.call_world([&](c10d::Backend& world) {
    in_group = side.abilities().groups && open_group(world);
    return call(world);
  });
  return issued(work, in_group);
}

WorkPtr WorldCalls::submit(Side& side, TwoTierCall call) {
  if (side.abilities().groups) {
    close_group();  // otherwise the group's operations would start behind work that waits for them
  }
  WorkPtr work = side.submit(std::move(call));
  const std::lock_guard lock(mutex_);
  if (coalescing_) {
    coalesced_.push_back(work);
  }
  return work;
}

// NCCL returns null Works for operations that run on the caller's stream alone.
WorkPtr WorldCalls::issued(WorkPtr work, bool in_group) {
  if (!work || !c10d::isP2POp(work->retrieveOpType())) {  // callers of sends and receives know the peer
    const uint64_t number = counters_.take_sequence_number();
    if (work) {
      work = c10::make_intrusive<WatchedWork>(work, watcher_(number));
    }
  }
  const std::lock_guard lock(mutex_);
  if (work && coalescing_ && !in_group) {
    coalesced_.push_back(work);
  }
  return work;
}

void WorldCalls::start_coalescing() {
  try {
    close_group();  // torch does not end coalescing if a call raised inside
  } catch (const std::exception&) {
    // the operations have thrown already, in their own calls
  }
  std::vector<WorkPtr> left_over;  // frees tensors without the lock
  const std::lock_guard lock(mutex_);
  coalescing_ = true;
  left_over.swap(coalesced_);
}

WorkPtr WorldCalls::end_coalescing() {
  close_group();
  const std::lock_guard lock(mutex_);
  coalescing_ = false;
  return c10::make_intrusive<CombinedWork>(group_.rank, c10d::OpType::COALESCED, std::exchange(coalesced_, {}));
}

// Torch does not say on which device it starts to coalesce: the tensors of the first call do.
bool WorldCalls::open_group(c10d::Backend& world) {
  {
    const std::lock_guard lock(mutex_);
    if (!coalescing_ || open_group_) {
      return open_group_ != nullptr;
    }
    open_group_ = &world;
  }
  world.startCoalescing();
  return true;
}

void WorldCalls::close_group() {
  c10d::Backend* group = nullptr;
  {
    const std::lock_guard lock(mutex_);
    group = std::exchange(open_group_, nullptr);
  }
  if (group == nullptr) {
    return;
  }
  const WorkPtr work = group->endCoalescing();
  const std::lock_guard lock(mutex_);
  if (work) {
    coalesced_.push_back(work);
  }
}

void WorldCalls::describe(const std::vector<Side*>& sides, const std::string& group) {
  std::call_once(described_, [&] {
    for (Side* side : sides) {
      if (group_.owns_worlds) {
        side->world()->setGroupDesc(group);
      }
    }
  });
}

std::chrono::milliseconds WorldCalls::timeout_or_default(std::chrono::milliseconds timeout) const {
  const std::lock_guard lock(mutex_);
  return timeout > kNoTimeout ? timeout : options_->timeout;
}

void WorldCalls::set_timeout(std::chrono::milliseconds timeout) {
  const std::lock_guard lock(mutex_);
  options_->timeout = timeout;
}

}  // namespace isthmus::torch_backend
