// Failures of a process group's operations: detects them, explains them, and makes the group fail from then on.
#pragma once

#include <algorithm>
#include <chrono>
#include <condition_variable>
#include <exception>
#include <mutex>
#include <optional>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "torch/base/group.h"
#include "torch/faults/fault_board.h"
#include "torch/works/work.h"
#include "transport/side_by_side.h"

namespace isthmus::torch_backend {

// Calls that run on one kind of device, and how they fail. Any thread may call any method.
class WatchedCalls {
 public:
  // For reports: the last call whose end the host does not see. Without an operation if there is none: the thread that
  // waits for a call then explains its failure.
  virtual FaultReport last_call() const = 0;
  // Throws a fault that was found on the device, once the host can see it; the group then fails, in `operation`.
  virtual void throw_if_faulted(FaultReport operation) = 0;
  // The oldest call whose end the host does not see and that takes so long that it counts as failed, with an error that
  // says so. Nothing where callers' threads wait for calls. Called by one thread at a time.
  virtual std::optional<FaultReport> overdue() { return std::nullopt; }
  // Makes this rank's calls fail, and with them the peers'. Does not wait for blocked threads.
  virtual void abort() = 0;

 protected:
  ~WatchedCalls() = default;
};

// Replaces a timeout that means "never": deadlines are counted in nanoseconds.
inline constexpr std::chrono::milliseconds kLongestTimeout = std::chrono::hours(24 * 3650);
// How long a rank that failed waits for the others' reports.
inline constexpr std::chrono::milliseconds kReportPatience{2000};

// The time limit of an operation's hops, chosen so that its error, which names the missing ranks, comes within the
// timeout.
inline std::chrono::milliseconds without_report(std::chrono::milliseconds timeout) {
  timeout = std::min(timeout, kLongestTimeout);
  return timeout - std::min(kReportPatience, timeout / 4);
}

// The same for operations on a GPU, which NCCL's watchdog ends together with the process once the timeout is over: by
// then the other ranks are asked, and NCCL is aborted.
inline std::chrono::milliseconds without_abort(std::chrono::milliseconds timeout) {
  timeout = std::min(timeout, kLongestTimeout);
  return timeout - std::min<std::chrono::milliseconds>(kReportPatience + kAbortPatience, timeout / 4);
}

// Its own thread looks for other ranks' reports while an operation takes long, or may take long on a GPU, for faults
// that the GPU found, and for operations there that do not end. Any thread may call any method but those that start and
// end that thread.
//
// Locks: `explain_mutex_` while the other ranks are asked; the sides' locks may be taken under it, never the other way
// round: no caller of explain() holds a side's lock. `mutex_` for moments; nothing else is locked under it.
class FaultWatch final : public FaultHandler {
 public:
  FaultWatch(const Group& group, const c10::intrusive_ptr<c10d::Store>& store);

  // Sets the group's sides, whose connections are closed after a failure. Called before all other methods; the sides
  // outlive the thread.
  void set_sides(std::vector<WatchedCalls*> sides) { sides_ = std::move(sides); }
  // Starts the thread. Throws std::system_error where this process may have no more threads.
  void start();
  // Ends it.
  void stop();
  void join();

  // Throws the group's failure, or an error if it accepts no calls any more.
  void require_usable() const;
  std::exception_ptr failure() const;  // null: it has not failed
  bool has_failed() const { return failure() != nullptr; }
  // For shutdown: later calls throw.
  void accept_no_more();
  // Makes the group fail from now on, and closes all connections.
  void abort();

  // After an operation failed: posts the report, closes all connections, asks the other ranks, and makes the group fail
  // from now on. Returns the error to throw, which names the operation and who is missing. Blocks for seconds.
  std::exception_ptr explain(const FaultReport& report);
  std::exception_ptr explain(c10d::OpType operation, uint64_t sequence_number, const std::string& error) override;
  void wait_begins() override;
  void wait_ends() override;
  void throw_if_failed(c10d::OpType operation, uint64_t sequence_number) override;

  // After a call on a GPU, whose progress the host does not see: looks from now on, in ever longer pauses.
  void look_soon();

 private:
  void run();
  bool look_is_due();  // under mutex_
  void look_for_failures(bool at_board);
  void fail_from_now_on(std::exception_ptr error);
  void close_all_connections();

  const Group& group_;
  FaultBoard board_;
  std::vector<WatchedCalls*> sides_;

  std::mutex explain_mutex_;  // one explanation at a time

  mutable std::mutex mutex_;       // guards what follows
  std::condition_variable wakes_;  // stopped_; else the thread wakes by the clock, so that waits cost nothing
  std::exception_ptr failure_;
  bool accepts_ = true;   // calls
  bool stopped_ = false;  // and no operation is under way any more
  int busy_ = 0;          // operations with a waiting caller
  std::chrono::steady_clock::time_point busy_since_;
  std::chrono::milliseconds look_pause_{0};  // 0: there was no call on a GPU
  std::chrono::steady_clock::time_point next_look_;

  std::thread thread_;
};

}  // namespace isthmus::torch_backend
