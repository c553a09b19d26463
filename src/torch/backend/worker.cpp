// The worker thread of BackendIsthmus, the thread that watches, and what happens when an operation fails.
#include <c10/util/thread_name.h>

#include <algorithm>
#include <utility>

#include "isthmus/error.h"
#include "torch/backend/internal.h"

namespace isthmus::torch_backend {
namespace {

// An operation that has been running for longer is watched: has another rank reported a failure?
constexpr std::chrono::milliseconds kQuietTime{500};
constexpr std::chrono::milliseconds kWatchPause{500};
constexpr std::chrono::milliseconds kLongestGpuLookPause{30000};

}  // namespace

WorkPtr BackendIsthmus::submit(TwoTierCall call) {
  if (call.output.is_cuda()) {
    return enqueue(std::move(call));
  }
  Job job;
  job.operation = call.operation;
  job.timeout = call.timeout;
  job.work = c10::make_intrusive<WorkerWork>(getRank(), call.type, call.title, std::vector<at::Tensor>{call.input},
                                             std::vector<at::Tensor>{call.output});
  job.exposed_unit = call.exposed_unit;
  if (call.exposed_unit) {
    job.work->tell_waits(
        [exposure = exposure_, unit = *call.exposed_unit](double seconds) { exposure->add_wait(unit, seconds); });
  }
  job.run = [call = std::move(call)](Communicator& communicator) {
    call.run(communicator, {});
    call.copy_back();
  };
  return queue(std::move(job));
}

WorkPtr BackendIsthmus::queue(Job job) {
  process_.require_this();
  std::lock_guard lock(mutex_);
  require_usable();
  WorkPtr work = job.work;
  if (job.sends) {
    job.operation.sequence_number = next_sequence_number_++;
    job.work->set_sequence_number(job.operation.sequence_number);
    if (coalescing_) {
      coalesced_.push_back(work);
    }
  }
  jobs_.push_back(std::move(job));
  worker_wakes_.notify_one();
  return work;
}

void BackendIsthmus::run_on_worker(const char* name, const std::function<void(Communicator&)>& action) {
  Job job;
  job.work = c10::make_intrusive<WorkerWork>(getRank(), c10d::OpType::UNKNOWN, name, std::vector<at::Tensor>{},
                                             std::vector<at::Tensor>{});
  job.run = action;
  job.sends = false;
  queue(std::move(job))->wait();
}

void BackendIsthmus::run_worker() {
  c10::setThreadName("isthmus_worker");
  std::unique_lock lock(mutex_);
  while (true) {
    worker_wakes_.wait(lock, [this] { return stopping_ || !jobs_.empty(); });
    if (jobs_.empty()) {
      return;
    }
    {
      Job job = std::move(jobs_.front());
      jobs_.pop_front();
      running_ = true;
      const std::exception_ptr failure = failure_;
      lock.unlock();
      failure ? job.work->fail(failure) : run_job(job);
    }  // tensors go here, without the lock
    lock.lock();
    running_ = false;
    if (stopping_ && idle()) {
      idle_.notify_all();
    }
  }
}

void BackendIsthmus::run_job(Job& job) {
  if (!job.sends) {
    try {
      job.run(*communicator_);
      job.work->complete();
    } catch (const std::exception&) {
      job.work->fail(std::current_exception());
    }
    return;
  }
  for (const auto& transport : transports_) {
    transport->set_deadline(Clock::now() + without_report(job.timeout));
  }
  wait_begins();
  const auto begin = Clock::now();
  try {
    job.run(*communicator_);
  } catch (const std::exception& error) {
    FaultReport report = job.operation;
    report.phase = communicator_->phase();
    report.error = error.what();
    const auto explained = explain(report);
    wait_ends();
    job.work->fail(explained);
    return;
  }
  wait_ends();
  if (job.exposed_unit) {
    exposure_->add_run(*job.exposed_unit, std::chrono::duration<double>(Clock::now() - begin).count());
  }
  job.work->complete();
}

std::exception_ptr BackendIsthmus::explain(const FaultReport& report) {
  std::lock_guard one_at_a_time(explain_mutex_);
  {
    std::lock_guard lock(mutex_);
    if (failure_) {  // of another operation, or abort() was called
      return failure_;
    }
  }
  board_->post(report);
  close_all_connections();  // so that the peers fail, too, and report
  auto error =
      dist_error(detail::concatenate("isthmus: ", describe(report), " failed on rank ", global_ranks_[getRank()],
                                     report.phase.empty() ? "" : " in phase ", report.phase, ": ", report.error, ". ",
                                     board_->diagnose(report, kReportPatience), "."));
  fail_from_now_on(error);
  return error;
}

std::exception_ptr BackendIsthmus::explain(c10d::OpType operation, uint64_t sequence_number, const std::string& error) {
  FaultReport report;
  report.operation = c10d::opTypeToString(operation);
  report.sequence_number = sequence_number;
  report.error = first_line(error);
  return explain(report);
}

void BackendIsthmus::wait_begins() {
  process_.require_this();
  std::lock_guard lock(mutex_);
  if (busy_++ == 0) {
    busy_since_ = Clock::now();
  }
}

void BackendIsthmus::wait_ends() {
  std::lock_guard lock(mutex_);
  --busy_;
}

void BackendIsthmus::run_watch() {
  c10::setThreadName("isthmus_watch");
  std::unique_lock lock(mutex_);
  while (!watch_wakes_.wait_for(lock, kWatchPause, [this] { return stopped_; })) {
    if (failure_) {
      continue;
    }
    const bool due = look_is_due();
    lock.unlock();
    look_for_failures(due);
    lock.lock();
  }
}

// Of operations on the GPU the host does not know whether they are under way: it looks after the last call for CUDA
// tensors, in longer and longer pauses.
bool BackendIsthmus::look_is_due() {
  const auto now = Clock::now();
  if (busy_ > 0 && now - busy_since_ >= kQuietTime) {
    return true;
  }
  if (gpu_look_pause_.count() == 0 || now < next_gpu_look_) {
    return false;
  }
  gpu_look_pause_ = std::min(2 * gpu_look_pause_, kLongestGpuLookPause);
  next_gpu_look_ = now + gpu_look_pause_;
  return true;
}

void BackendIsthmus::look_for_failures(bool at_board) {
  const FaultReport report = last_gpu_call("another rank failed");
  try {
    throw_gpu_fault(report);
  } catch (const std::exception&) {
    return;  // it is explained, and thrown by the next call
  }
  if (!at_board || !board_->any_report()) {
    return;
  }
  close_all_connections();
  if (!report.operation.empty()) {  // then nobody on this host may be waiting who would explain
    explain(report);
  }
}

void BackendIsthmus::fail_from_now_on(std::exception_ptr error) {
  std::lock_guard lock(mutex_);
  failure_ = failure_ ? failure_ : std::move(error);
}

void BackendIsthmus::close_all_connections() {
  BackendPtr world;
  std::vector<std::shared_ptr<MessageTransport>> transports;
  {
    std::lock_guard lock(mutex_);
    world = world_;
    transports = transports_;
  }
  for (const auto& transport : transports) {
    transport->abort();
  }
  if (cuda_) {
    cuda_->abort();
  }
  if (world) {
    close_connections(*world);
  }
}

}  // namespace isthmus::torch_backend
