// The host's part in gathers of weights on a GPU, for which it never waits. See docs/weights.md.
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

// A unit whose weights are gathered on a GPU.
struct WatchedUnit {
  // How many gathers have their own place for the outcome. An outcome is read before its place is needed again, because
  // a gather's capacity depends on the gather kLag before it.
  static constexpr int64_t kPlaces = 2 * WeightHistory::kLag;
  kernels::WeightOutcome& place(int64_t number, int64_t num_nodes) const {
    return *reinterpret_cast<kernels::WeightOutcome*>(places + number % kPlaces * weight_outcome_bytes(num_nodes));
  }

  UnitKey key;
  ConstBuffer shard;            // of one rank: its size and type
  std::byte* places = nullptr;  // mapped memory: kPlaces times weight_outcome_bytes()
  WeightHistory history;        // guarded by the WeightWatch
};

// A gather that was enqueued. If all packets fitted, the GPU goes on by itself. If not, it copies this rank's shard to
// `outgoing`, says so in its outcome, and waits until the rail's shards are in `arrived`.
struct WatchedGather {
  std::shared_ptr<WatchedUnit> unit;
  int64_t number = 0;    // of the unit, from 0 on
  ConstBuffer outgoing;  // mapped memory, as is what follows
  Buffer arrived;
};

// A thread that reads outcomes in the order of the gathers. It keeps the sizes of packets, counts, and carries shards
// over the host's tier when the GPU waits for them. Outcomes and their order are equal along a rail, so all its ranks
// meet there. A gather that failed calls `fail`, and the GPU goes on with what it has.
//
// The thread needs neither the GPU nor CUDA, so a GPU that waits for the thread blocks nothing that the thread needs.
class WeightWatch {
 public:
  // host_inter: the rail's tier for host memory, which only this thread uses. fail: aborts the communicator; any thread
  // may call it. All arguments outlive this object.
  WeightWatch(Transport& host_inter, Statistics& statistics, std::function<void(const std::string&)> fail);
  // Ends the GPU's waits.
  ~WeightWatch();
  WeightWatch(const WeightWatch&) = delete;
  WeightWatch& operator=(const WeightWatch&) = delete;

  // The room for packets in the next gather to enqueue: WeightHistory::capacity(). If the GPU has not reached the
  // gather kLag before, it waits for it and counts that. Throws TransportError after a failure.
  int64_t capacity(const WatchedUnit& unit, int64_t number, int64_t most_bytes, WeightStats& counts);
  // Called before the gather's decoding is enqueued, in the order of all gathers.
  void watch(WatchedGather gather);
  // Reads the outcomes that are there, for statistics.
  void look();
  // Ends the GPU's waits for good. Any thread may call it.
  void release();

 private:
  using Lock = std::unique_lock<std::mutex>;

  void run();
  bool is_published(const WatchedGather& gather) const;
  // Reads outcomes until one is missing or needs the host's tier. Returns whether the first one left needs it.
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
  std::deque<WatchedGather> gathers_;  // with outcomes that were not read yet
  bool carries_ = false;               // the first of them is being carried over the host's tier
  bool released_ = false;
  bool ends_ = false;
  int num_waiting_ = 0;  // threads that wait for sizes
  std::thread thread_;
};

}  // namespace isthmus
