// What the host does about gathers of weights on a GPU, which it never waits for. docs/weights.md
#pragma once

#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <mutex>
#include <string>
#include <thread>

#include "codec/weights/device.h"
#include "communicator/run/statistics.h"
#include "communicator/units/weight_history.h"
#include "isthmus/transport.h"
#include "isthmus/unit.h"

namespace isthmus {

// One unit whose weights are gathered on a GPU.
struct WatchedUnit {
  // Gathers whose outcomes have places of their own: an outcome is read before its place is needed again, since the
  // capacity of a gather follows from that of the gather kLag before it.
  static constexpr int64_t kPlaces = 2 * WeightHistory::kLag;
  kernels::WeightOutcome& place(int64_t number, int64_t num_nodes) const {
    return *reinterpret_cast<kernels::WeightOutcome*>(places + number % kPlaces * weight_outcome_bytes(num_nodes));
  }

  UnitKey key;
  ConstBuffer shard;            // of one rank: its size and type
  std::byte* places = nullptr;  // mapped memory: kPlaces times weight_outcome_bytes()
  WeightHistory history;        // guarded by the WeightWatch
};

// A gather that was enqueued. The GPU goes on by itself where all packets fitted. Else it copies this rank's shard to
// `outgoing`, says so in its outcome, and waits until the rail's shards are in `arrived`.
struct WatchedGather {
  std::shared_ptr<WatchedUnit> unit;
  int64_t number = 0;    // of the unit, from 0 on
  ConstBuffer outgoing;  // mapped memory, as is what follows
  Buffer arrived;
};

// Reads outcomes in the order of the gathers, in a thread of its own: keeps the sizes of packets, counts, and carries
// shards over the host's tier where the GPU waits for that. Outcomes and their order are equal along a rail, so all its
// ranks meet there. A gather that failed ends in `fail`, and the GPU goes on with what it has.
//
// Nothing that the thread does needs the GPU, not even CUDA: a GPU that waits for it blocks nothing that it waits for.
class WeightWatch {
 public:
  // host_inter: along the rail, for memory of the host; the thread alone uses it. fail: aborts the communicator; from
  // any thread. All outlive it.
  WeightWatch(Transport& host_inter, Statistics& statistics, std::function<void(const std::string&)> fail);
  // Lets the GPU go on.
  ~WeightWatch();
  WeightWatch(const WeightWatch&) = delete;
  WeightWatch& operator=(const WeightWatch&) = delete;

  // The room for packets in a gather that is about to be enqueued: WeightHistory::capacity(). Waits, and counts that,
  // where the GPU has not come to the gather kLag before yet. Throws TransportError after a failure.
  int64_t capacity(const WatchedUnit& unit, int64_t number, int64_t most_bytes, WeightStats& counts);
  // Before its decoding is enqueued; in the order of all gathers.
  void watch(WatchedGather gather);
  // Reads what is there to read, for statistics.
  void look();
  // The GPU waits for nothing any more. From any thread.
  void release();

 private:
  using Lock = std::unique_lock<std::mutex>;

  void run();
  bool is_published(const WatchedGather& gather) const;
  // Reads outcomes until one is not there, or needs the host's tier. Whether the first that is left does.
  bool look(const Lock& lock);
  void carry(Lock& lock);
  void release(const Lock& lock);
  void finish(const WatchedGather& gather, WeightStats counts, Traffic carried);
  void let_go(const WatchedGather& gather) const;

  Transport& host_inter_;
  const int64_t num_nodes_;
  Statistics& statistics_;
  const std::function<void(const std::string&)> fail_;

  std::mutex mutex_;  // guards what follows, and histories
  std::condition_variable changed_;
  std::deque<WatchedGather> gathers_;  // whose outcomes were not read yet
  bool carries_ = false;               // the first of them is being carried over the host's tier
  bool released_ = false;
  bool ends_ = false;
  int num_waiting_ = 0;  // threads, for sizes
  std::thread thread_;
};

}  // namespace isthmus
