// The side of CPU tensors: a worker thread that runs the two-tier path, and a world backend (Gloo).
#pragma once

#include <condition_variable>
#include <deque>
#include <memory>
#include <mutex>
#include <optional>
#include <thread>
#include <vector>

#include "torch/base/call_counters.h"
#include "torch/base/group.h"
#include "torch/base/ranges.h"
#include "torch/faults/fault_watch.h"
#include "torch/sides/side.h"
#include "transport/message_transport.h"

namespace isthmus::torch_backend {

struct CpuParts {
  BackendPtr world;
  BackendPtr tiers;  // of all ranks; carries the tiers, if there are two: `world`, if it is owned
  std::shared_ptr<MessageTransport> inter;  // the tier between nodes; null: one over `tiers`
};

// One worker thread runs operations in two tiers, in the order of their calls. It alone uses the tiers and, between
// collectives, the communicator. Callers' threads call the world backend, over whose connections tiers send, too, and
// callbacks of Futures run on their own threads.
//
// `mutex_` guards the queue and the members that shutdown() takes away. The locks of the counters, FaultWatch and the
// communicator are the only ones taken under it. Jobs run without it.
class CpuSide final : public Side {
 public:
  // Throws OptionError or Error if options and tiers do not fit the map.
  CpuSide(const Group& group, const CpuParts& parts, FaultWatch& faults, CallCounters& counters);
  // Starts the worker if there are two tiers. Throws std::system_error if this process can have no more threads.
  void start();
  void join();  // waits for the worker and callbacks; called after wait_until_idle()

  WorldAbilities abilities() const override { return {}; }
  void arrived(const char* /*call*/) override {}
  BackendPtr world() override;
  WorkPtr call_world(const std::function<WorkPtr(c10d::Backend&)>& call) override { return call(*world()); }

  WorkPtr submit(TwoTierCall call) override;
  WorkPtr submitted() override;
  WorkPtr run_between_collectives(const char* name, std::function<void(Communicator&)> action) override;
  bool has_communicator() const override { return group_.two_tier(); }

  std::optional<SideStats> stats() override;
  void reset_stats() override;

  void connect(at::Device device) override;
  void set_timeout(std::chrono::milliseconds timeout) override;

  bool wait_until_idle(std::chrono::milliseconds patience) override;
  void run_at_end(const std::function<void(Communicator&)>& action) override;
  void abort() override;
  void shutdown() override;  // called after join()

 private:
  struct Task {
    c10::intrusive_ptr<WorkerWork> work;
    std::function<void()> run;
    std::optional<Profilers> profilers;  // of the thread that called
  };

  // See SideStats. Any thread calls these.
  class Seconds {
   public:
    void run_begins();
    void run_ends();
    double ran();  // until now
    // Counts what has run since ran() was `before` as waited for.
    void waited_since(double before);
    void write_to(SideStats& stats);
    void reset();

   private:
    double ran_until_now() const;  // the caller holds mutex_

    std::mutex mutex_;
    std::optional<Clock::time_point> run_began_;
    double ran_ = 0;
    double waited_ = 0;
  };

  std::shared_ptr<MessageTransport> make_tier(const char* name, const std::vector<int>& ranks);
  WorkPtr queue(c10::intrusive_ptr<WorkerWork> work, std::function<void()> run, bool is_collective);
  bool idle() const { return tasks_.empty() && !running_; }  // the caller holds mutex_
  void run_worker();
  void run_task(const Task& task);
  void run_collective(const TwoTierCall& call, uint64_t sequence_number);  // throws the group's failure

  const Group& group_;
  FaultWatch& faults_;
  CallCounters& counters_;
  const std::shared_ptr<Seconds> seconds_ = std::make_shared<Seconds>();  // Works may outlive this

  std::mutex mutex_;                                           // guards the members below
  std::condition_variable wakes_;                              // notified on a new task and on stopping_
  std::condition_variable idle_;                               // notified when idle() while stopping_
  BackendPtr world_;                                           // null after shutdown
  BackendPtr tiers_;                                           // null after shutdown, or without two tiers
  std::vector<std::shared_ptr<MessageTransport>> transports_;  // the worker reads them without the lock
  std::shared_ptr<Communicator> communicator_;                 // the same; null without two tiers
  std::deque<Task> tasks_;
  bool running_ = false;  // a task is running
  bool stopping_ = false;

  std::thread worker_;
  const std::shared_ptr<CallbackThreads> callback_threads_ =
      std::make_shared<CallbackThreads>();  // Works may outlive this
};

}  // namespace isthmus::torch_backend
