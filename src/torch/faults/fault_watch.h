// Detects and explains failures of a process group's operations, and makes the group fail from then on.
#pragma once

#include <chrono>
#include <condition_variable>
#include <exception>
#include <mutex>
#include <optional>
#include <string>
#include <thread>
#include <torch/csrc/distributed/c10d/Work.hpp>
#include <utility>
#include <vector>

#include "torch/base/group.h"
#include "torch/faults/fault_board.h"

namespace isthmus::torch_backend {

class FaultWatch;

// Watches a Work, whose collective has this sequence number in its group.
struct Watcher {
  uint64_t sequence_number;
  c10::weak_intrusive_ptr<c10::intrusive_ptr_target> owner;  // of `faults`; may be destroyed before the Work
  FaultWatch* faults;
};

// Calls on one kind of device, and how they fail. Any thread may call any method.
class WatchedCalls {
 public:
  // Returns the last call whose end the host does not see, for reports. The report has no operation if there is no such
  // call: then the thread that waits for a call explains its failure.
  virtual FaultReport last_call() const { return {}; }
  // Throws a fault that the device found, once the host can see it; the group then fails, in `operation`.
  virtual void throw_if_faulted(const FaultReport& /*operation*/) {}
  // Returns the oldest call whose end the host does not see and that has taken so long that it counts as failed, with
  // an error that says so; nothing where callers' threads wait for calls. One thread at a time calls this.
  virtual std::optional<FaultReport> overdue() { return std::nullopt; }
  // Makes the calls of this rank and its peers fail. Does not wait for blocked threads.
  virtual void abort() = 0;

 protected:
  ~WatchedCalls() = default;
};

// Replaces a timeout that means "never", which would overflow: deadlines are counted in nanoseconds.
inline constexpr std::chrono::milliseconds kLongestTimeout = std::chrono::hours(24 * 3650);

// Returns the time limit for an operation's hops. It leaves time to collect the report, so that the error that names
// the missing ranks comes within the timeout.
std::chrono::milliseconds without_report(std::chrono::milliseconds timeout);

// Returns the time limit for operations on a GPU. Once the timeout is over, NCCL's watchdog ends the process; this
// leaves time to ask the other ranks and to abort NCCL before.
std::chrono::milliseconds without_abort(std::chrono::milliseconds timeout);

// Its own thread looks for other ranks' reports while an operation takes long, or may take long on a GPU; for faults
// that the GPU found; and for operations on the GPU that do not end. Any thread may call any method except those that
// start and end that thread.
//
// Locks: `explain_mutex_` is held while the other ranks are asked. The sides' locks may be taken under it, never the
// other way round: no caller of explain() holds a side's lock. `mutex_` is held for moments, and no other lock is taken
// under it.
class FaultWatch {
 public:
  // store: where ranks report to each other; null: errors name what this rank saw alone. owner: of this.
  FaultWatch(const Group& group, const c10::intrusive_ptr<c10d::Store>& store, c10::intrusive_ptr_target& owner);

  // Sets the group's sides, whose connections a failure closes. Called before all other methods; the sides outlive the
  // thread.
  void set_sides(std::vector<WatchedCalls*> sides) { sides_ = std::move(sides); }
  // Starts the thread. Throws std::system_error where this process may have no more threads.
  void start();
  // stop() tells the thread to end, join() waits for it.
  void stop();
  void join();

  // Called only after the owner's constructor has returned: nobody holds the owner before.
  Watcher watcher(uint64_t sequence_number);

  // Throws the group's failure, or an error if the group no longer accepts calls.
  void require_usable() const;
  std::exception_ptr failure() const;  // null: the group has not failed
  bool has_failed() const { return failure() != nullptr; }
  // Called by a shutdown: later calls throw.
  void accept_no_more();
  // Makes the group fail from now on, and closes all connections.
  void abort();

  // Called after an operation failed: posts the report, closes all connections, asks the other ranks, and makes the
  // group fail from now on. Returns the error to throw, which names the operation and the missing ranks. Blocks for
  // seconds where there is a store.
  std::exception_ptr explain(const FaultReport& report);
  std::exception_ptr explain(c10d::OpType operation, uint64_t sequence_number, const std::string& error);
  // Throws the group's failure, or a fault that its GPU has found so far.
  void throw_if_failed(c10d::OpType operation, uint64_t sequence_number);
  // A caller waits for an operation. Throws in a forked child, where nobody may wait.
  void wait_begins();
  void wait_ends();

  // Called after a call on a GPU, whose progress the host does not see: the thread looks for reports from now on, in
  // ever longer pauses.
  void look_soon();
  // Called now and then while a GPU is busy with a call: the pauses are short.
  void look_while_busy();

 private:
  void run();
  bool look_is_due();  // the caller holds mutex_
  void look_for_failures(bool at_board);
  void fail_from_now_on(std::exception_ptr error);
  void close_all_connections();  // once: later calls wait for the first

  const Group& group_;
  c10::intrusive_ptr_target& owner_;
  std::optional<FaultBoard> board_;
  std::vector<WatchedCalls*> sides_;
  std::once_flag closed_;  // all connections

  std::mutex explain_mutex_;  // only one thread explains at a time

  mutable std::mutex mutex_;       // guards the members below
  std::condition_variable wakes_;  // notified by stop() alone: otherwise the thread wakes by the clock
  std::exception_ptr failure_;
  bool accepts_ = true;   // false: require_usable() throws
  bool stopped_ = false;  // the thread ends
  int busy_ = 0;          // operations with a waiting caller
  std::chrono::steady_clock::time_point busy_since_;
  std::chrono::milliseconds look_pause_{0};  // 0: no call on a GPU yet
  std::chrono::steady_clock::time_point next_look_;

  std::thread thread_;
};

}  // namespace isthmus::torch_backend
