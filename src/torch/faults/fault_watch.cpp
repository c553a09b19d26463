#include "torch/faults/fault_watch.h"

#include <c10/util/Exception.h>
#include <c10/util/thread_name.h>

#include <algorithm>
#include <utility>

#include "base/threads.h"
#include "isthmus/error.h"
#include "transport/message_transport.h"  // Clock

namespace isthmus::torch_backend {
namespace {

// Once an operation has run for this long, the thread looks whether another rank has reported a failure.
constexpr std::chrono::milliseconds kQuietTime{500};
constexpr std::chrono::milliseconds kWatchPause{500};
// The pause between a call on a GPU and the first look for other ranks' reports; later pauses grow up to the longest,
// or up to that of busy ones while the GPU works on a call, perhaps in vain.
constexpr std::chrono::milliseconds kFirstLookPause{500};
constexpr std::chrono::milliseconds kBusyLookPause{2000};
constexpr std::chrono::milliseconds kLongestLookPause{30000};
// How long a rank that failed waits for the others' reports.
constexpr std::chrono::milliseconds kReportPatience{2000};

std::exception_ptr dist_error(const std::string& text) {
  return std::make_exception_ptr(c10::DistBackendError({__func__, __FILE__, __LINE__}, text));
}

std::chrono::milliseconds shortened(std::chrono::milliseconds timeout, std::chrono::milliseconds by) {
  timeout = std::min(timeout, kLongestTimeout);
  return timeout - std::min(by, timeout / 4);
}

}  // namespace

std::chrono::milliseconds without_report(std::chrono::milliseconds timeout) {
  return shortened(timeout, kReportPatience);
}

std::chrono::milliseconds without_abort(std::chrono::milliseconds timeout) {
  return shortened(timeout, kReportPatience + kAbortPatience);
}

FaultWatch::FaultWatch(const Group& group, const c10::intrusive_ptr<c10d::Store>& store,
                       c10::intrusive_ptr_target& owner)
    : group_(group), owner_(owner) {
  if (store) {
    board_.emplace(store, group.rank, group.global_ranks);
  }
}

void FaultWatch::start() {
  if (group_.size > 1) {
    thread_ = std::thread([this] { run(); });
  }
}

void FaultWatch::stop() {
  const std::lock_guard lock(mutex_);
  stopped_ = true;
  wakes_.notify_one();
}

void FaultWatch::join() {
  if (thread_.joinable()) {
    thread_.join();
  }
}

Watcher FaultWatch::watcher(uint64_t sequence_number) {
  using Owner = c10::intrusive_ptr_target;
  const auto owner = c10::intrusive_ptr<Owner>::reclaim_copy(&owner_);
  return {sequence_number, c10::weak_intrusive_ptr<Owner>(owner), this};
}

void FaultWatch::require_usable() const {
  const std::lock_guard lock(mutex_);
  if (failure_) {
    std::rethrow_exception(failure_);
  }
  TORCH_CHECK_WITH(DistBackendError, accepts_, "isthmus: this process group is shut down");
}

std::exception_ptr FaultWatch::failure() const {
  const std::lock_guard lock(mutex_);
  return failure_;
}

void FaultWatch::accept_no_more() {
  const std::lock_guard lock(mutex_);
  accepts_ = false;
}

void FaultWatch::abort() {
  fail_from_now_on(dist_error("isthmus: this process group was aborted"));
  close_all_connections();
}

std::exception_ptr FaultWatch::explain(const FaultReport& report) {
  const std::lock_guard one_at_a_time(explain_mutex_);
  if (auto earlier = failure()) {  // another operation failed, or abort() was called
    return earlier;
  }
  if (board_) {
    board_->post(report);
  }
  close_all_connections();  // so that the peers also fail and report
  auto error = dist_error(
      detail::concatenate("isthmus: ", describe(report), " failed on rank ", group_.global_ranks[group_.rank],
                          report.phase.empty() ? "" : " in phase ", report.phase, ": ", report.error,
                          board_ ? ". " + board_->diagnose(report, kReportPatience) : "", "."));
  fail_from_now_on(error);
  return error;
}

std::exception_ptr FaultWatch::explain(c10d::OpType operation, uint64_t sequence_number, const std::string& error) {
  return explain(
      {.sequence_number = sequence_number, .operation = c10d::opTypeToString(operation), .error = first_line(error)});
}

void FaultWatch::wait_begins() {
  group_.process.require_this();
  const std::lock_guard lock(mutex_);
  if (busy_++ == 0) {
    busy_since_ = Clock::now();
  }
}

void FaultWatch::wait_ends() {
  const std::lock_guard lock(mutex_);
  --busy_;
}

void FaultWatch::throw_if_failed(c10d::OpType operation, uint64_t sequence_number) {
  if (const auto error = failure()) {
    std::rethrow_exception(error);
  }
  for (WatchedCalls* side : sides_) {
    side->throw_if_faulted({.sequence_number = sequence_number, .operation = c10d::opTypeToString(operation)});
  }
}

void FaultWatch::look_soon() {
  const std::lock_guard lock(mutex_);
  look_pause_ = kFirstLookPause;
  next_look_ = Clock::now() + look_pause_;
}

void FaultWatch::look_while_busy() {
  const std::lock_guard lock(mutex_);
  next_look_ = std::min(next_look_, Clock::now() + kBusyLookPause);
}

void FaultWatch::run() {
  c10::setThreadName("isthmus_watch");
  std::unique_lock lock(mutex_);
  while (!wakes_.wait_for(lock, kWatchPause, [this] { return stopped_; })) {
    if (failure_) {
      continue;
    }
    const bool due = look_is_due();
    lock.unlock();
    look_for_failures(due);
    lock.lock();
  }
}

bool FaultWatch::look_is_due() {
  const auto now = Clock::now();
  if (busy_ > 0 && now - busy_since_ >= kQuietTime) {
    return true;
  }
  if (look_pause_.count() == 0 || now < next_look_) {
    return false;
  }
  look_pause_ = std::min(2 * look_pause_, kLongestLookPause);
  next_look_ = now + look_pause_;
  return true;
}

void FaultWatch::look_for_failures(bool at_board) {
  FaultReport last;  // explained here, since perhaps no thread waits for it
  for (WatchedCalls* side : sides_) {
    FaultReport call = side->last_call();
    call.error = "another rank failed";
    try {
      side->throw_if_faulted(call);
    } catch (const std::exception&) {
      return;  // throw_if_faulted() has explained it; the next call throws it
    }
    if (const std::optional<FaultReport> late = side->overdue()) {
      explain(*late);
      return;
    }
    if (!call.operation.empty()) {
      last = std::move(call);
    }
  }
  if (!at_board || !board_ || !board_->any_report()) {
    return;
  }
  if (last.operation.empty()) {
    close_all_connections();
  } else {
    explain(last);
  }
}

void FaultWatch::fail_from_now_on(std::exception_ptr error) {
  const std::lock_guard lock(mutex_);
  failure_ = failure_ ? failure_ : std::move(error);
}

void FaultWatch::close_all_connections() {
  std::call_once(closed_, [this] {
    for (WatchedCalls* side : sides_) {
      side->abort();
    }
  });
}

}  // namespace isthmus::torch_backend
