#include "communicator/path/weight_watch.h"

#include <algorithm>
#include <chrono>
#include <utility>
#include <vector>

#include "communicator/path/weight_headers.h"
#include "isthmus/error.h"

namespace isthmus {
namespace {

using kernels::WeightOutcome;
using kernels::WeightVerdict;

// How often the thread looks for outcomes. In a steady state nothing waits for it.
constexpr std::chrono::microseconds kPause{1000};
constexpr std::chrono::microseconds kPauseIfAwaited{50};

std::vector<WeightHeader> headers_of(const WeightOutcome& outcome, int64_t num_nodes) {
  std::vector<WeightHeader> headers;
  for (int64_t node = 0; node < num_nodes; ++node) {
    headers.push_back(received_header(outcome, node));
  }
  return headers;
}

}  // namespace

WeightWatch::WeightWatch(Transport& host_inter, Statistics& statistics, std::function<void(const std::string&)> fail)
    : host_inter_(host_inter), num_nodes_(host_inter.size()), statistics_(statistics), fail_(std::move(fail)) {}

WeightWatch::~WeightWatch() {
  release();
  {
    const Lock lock(mutex_);
    ends_ = true;
  }
  changed_.notify_all();
  if (thread_.joinable()) {
    thread_.join();
  }
}

int64_t WeightWatch::capacity(const WatchedUnit& unit, int64_t number, int64_t most_bytes, WeightStats& counts) {
  Lock lock(mutex_);
  const int64_t needed = std::max<int64_t>(0, number - WeightHistory::kLag + 1);
  const auto is_known = [&] { return unit.history.num_known() >= needed || released_; };
  look(lock);
  if (!is_known()) {
    ++counts.host_waits;
    ++num_waiting_;
    changed_.notify_all();
    changed_.wait(lock, is_known);
    --num_waiting_;
  }
  ISTHMUS_CHECK(TransportError, !released_, "gather ", number, " of the weights of unit \"", unit.key.name,
                "\": aborted");
  return unit.history.capacity(number, most_bytes);
}

void WeightWatch::watch(WatchedGather gather) {
  const Lock lock(mutex_);
  if (released_) {
    let_go(gather);
    return;
  }
  gathers_.push_back(std::move(gather));
  if (!thread_.joinable()) {
    thread_ = std::thread([this] { run(); });
  }
  changed_.notify_all();
}

void WeightWatch::look() {
  const Lock lock(mutex_);
  look(lock);
}

void WeightWatch::release() {
  const Lock lock(mutex_);
  release(lock);
}

void WeightWatch::release(const Lock& /*lock*/) {
  released_ = true;
  for (const WatchedGather& gather : gathers_) {
    let_go(gather);
  }
  if (!carries_) {
    gathers_.clear();
  }
  changed_.notify_all();
}

void WeightWatch::run() {
  Lock lock(mutex_);
  while (!ends_) {
    if (look(lock)) {
      carry(lock);
    } else if (gathers_.empty()) {
      changed_.wait(lock);
    } else {
      changed_.wait_for(lock, num_waiting_ > 0 ? kPauseIfAwaited : kPause);
    }
  }
}

bool WeightWatch::is_published(const WatchedGather& gather) const {
  WeightOutcome& outcome = gather.unit->place(gather.number, num_nodes_);
  return std::atomic_ref(outcome.gather).load(std::memory_order_acquire) == static_cast<uint32_t>(gather.number + 1);
}

bool WeightWatch::look(const Lock& /*lock*/) {
  while (!gathers_.empty() && !carries_ && is_published(gathers_.front())) {
    const WatchedGather& gather = gathers_.front();
    if (gather.unit->place(gather.number, num_nodes_).verdict != WeightVerdict::kInPlace) {
      return true;
    }
    finish(gather, {}, {});
  }
  return false;
}

// Carries the first gather, whose packets the GPU could not use, over the host's tier.
void WeightWatch::carry(Lock& lock) {
  const WatchedGather gather = gathers_.front();
  const WeightOutcome& outcome = gather.unit->place(gather.number, num_nodes_);
  const std::vector<WeightHeader> headers = headers_of(outcome, num_nodes_);
  const Traffic before = host_inter_.traffic();
  WeightStats counts;
  carries_ = true;
  lock.unlock();
  bool has_failed = false;
  try {
    if (outcome.verdict == WeightVerdict::kFault) {
      check_weight_headers(headers, gather.unit->shard);  // its error says more about headers that do not fit together
      throw PacketError(text_of_fault(outcome));
    }
    const std::string differing = differing_replicas(headers);
    counts.healed = differing.empty() ? 0 : 1;
    counts.whole[differing.empty() ? "packets were longer than the room for them" : differing] = 1;
    host_inter_.all_gather(gather.outgoing, gather.arrived, {})->wait();
  } catch (const std::exception& error) {
    has_failed = true;
    fail_(error.what());
  }
  lock.lock();
  carries_ = false;
  if (has_failed || released_) {
    release(lock);
    return;
  }
  let_go(gather);
  finish(gather, counts, host_inter_.traffic() - before);
}

void WeightWatch::finish(const WatchedGather& gather, WeightStats counts, Traffic carried) {
  const std::vector<WeightHeader> headers = headers_of(gather.unit->place(gather.number, num_nodes_), num_nodes_);
  uint64_t longest = 0;
  for (const WeightHeader& header : headers) {
    longest = std::max(longest, header.packet_bytes);
  }
  const auto own = static_cast<int64_t>(headers[static_cast<size_t>(host_inter_.rank())].packet_bytes);
  counts.unchanged = counts.whole.empty() && own == 0 ? 1 : 0;
  const int64_t peers = counts.whole.empty() ? num_nodes_ - 1 : 0;
  statistics_.add_crossing(gather.unit->key, counts, peers * gather.unit->shard.num_elements, peers * own, carried);
  gather.unit->history.add(static_cast<int64_t>(longest));
  gathers_.pop_front();
  changed_.notify_all();
}

void WeightWatch::let_go(const WatchedGather& gather) const {
  WeightOutcome& outcome = gather.unit->place(gather.number, num_nodes_);
  std::atomic_ref(outcome.ready).store(static_cast<uint32_t>(gather.number + 1), std::memory_order_release);
}

}  // namespace isthmus
