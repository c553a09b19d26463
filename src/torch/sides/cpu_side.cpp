#include "torch/sides/cpu_side.h"

#include <c10/util/ScopeExit.h>
#include <c10/util/thread_name.h>

#include <algorithm>
#include <functional>
#include <typeinfo>
#include <utility>
#include <vector>

#include "base/threads.h"
#include "core/host.h"
#include "isthmus/error.h"
#include "torch/sides/c10d_transport.h"

namespace isthmus::torch_backend {

bool is_refusal(const std::exception& error, const Communicator* communicator) {
  const bool refuses = typeid(error) == typeid(Error) || typeid(error) == typeid(OptionError);
  return dynamic_cast<const c10::ValueError*>(&error) != nullptr ||
         (refuses && (communicator == nullptr || !communicator->is_aborted()));
}

CpuSide::CpuSide(const Group& group, const CpuParts& parts, FaultWatch& faults, CallCounters& counters)
    : group_(group), faults_(faults), counters_(counters), world_(parts.world), tiers_(parts.tiers) {
  if (group_.two_tier()) {
    const NodeMap& map = group_.map;
    ISTHMUS_CHECK(Error, tiers_ != nullptr && tiers_->getSize() == group_.size, "no backend of ", group_.size,
                  " ranks for the tiers");
    Tiers tiers;
    tiers.intra = make_tier("intra", map.node_ranks(map.node(group_.rank)));
    tiers.inter = parts.inter ? transports_.emplace_back(parts.inter)
                              : make_tier("inter", map.rail_ranks(map.local_index(group_.rank)));
    tiers.flat = group_.options.is_flat() ? make_tier("flat", map.all_ranks()) : nullptr;
    communicator_ = std::make_shared<Communicator>(map, group_.rank, tiers, group_.options,
                                                   make_host_device(PhaseRanges{begin_range, end_range}));
  }
}

std::shared_ptr<MessageTransport> CpuSide::make_tier(const char* name, const std::vector<int>& ranks) {
  std::vector<int> global_ranks;
  std::vector<int> nodes;
  for (const int rank : ranks) {
    global_ranks.push_back(group_.global_ranks[rank]);
    nodes.push_back(group_.map.node(rank));
  }
  return transports_.emplace_back(std::make_shared<C10dTransport>(name, tiers_, ranks, std::move(global_ranks), nodes));
}

void CpuSide::start() {
  if (group_.two_tier()) {
    worker_ = std::thread([this] { run_worker(); });
  }
}

void CpuSide::join() {
  if (worker_.joinable()) {
    worker_.join();
    callback_threads_->join();
  }
}

BackendPtr CpuSide::world() {
  group_.process.require_this();
  const std::lock_guard lock(mutex_);
  faults_.require_usable();
  return world_;
}

WorkPtr CpuSide::submit(TwoTierCall call) {
  auto work = c10::make_intrusive<WorkerWork>(group_.rank, call.type, call.title, std::vector{call.input},
                                              std::vector{call.output});
  work->tell_waits(
      [seconds = seconds_] { return [seconds, before = seconds->ran()] { seconds->waited_since(before); }; });
  auto run = [this, own = work.get(), call = std::move(call)] { run_collective(call, own->getSequencenumber()); };
  return queue(std::move(work), std::move(run), /*is_collective=*/true);
}

WorkPtr CpuSide::submitted() {
  return has_communicator() ? run_between_collectives("isthmus:barrier", [](Communicator&) {}) : nullptr;
}

WorkPtr CpuSide::run_between_collectives(const char* name, std::function<void(Communicator&)> action) {
  auto work = c10::make_intrusive<WorkerWork>(group_.rank, c10d::OpType::UNKNOWN, name, std::vector<at::Tensor>{},
                                              std::vector<at::Tensor>{});
  auto run = [this, action = std::move(action)] { action(*communicator_); };
  return queue(std::move(work), std::move(run), /*is_collective=*/false);
}

WorkPtr CpuSide::queue(c10::intrusive_ptr<WorkerWork> work, std::function<void()> run, bool is_collective) {
  work->complete_on(callback_threads_);
  const std::lock_guard lock(mutex_);
  faults_.require_usable();  // under the lock, so that wait_until_idle() sees the task or the task is refused
  if (is_collective) {
    work->set_sequence_number(counters_.take_sequence_number());
  }
  tasks_.push_back({work, std::move(run), Profilers::here()});
  wakes_.notify_one();
  return work;
}

void CpuSide::run_worker() {
  c10::setThreadName("isthmus_worker");
  std::unique_lock lock(mutex_);
  while (true) {
    wakes_.wait(lock, [this] { return stopping_ || !tasks_.empty(); });
    if (tasks_.empty()) {
      return;
    }
    {
      Task task = std::move(tasks_.front());
      tasks_.pop_front();
      running_ = true;
      lock.unlock();
      const std::exception_ptr failure = faults_.failure();
      failure ? task.work->fail(failure) : run_task(task);
    }  // the task's tensors are freed here, without the lock
    lock.lock();
    running_ = false;
    if (stopping_ && idle()) {
      idle_.notify_all();
    }
  }
}

void CpuSide::run_task(const Task& task) {
  std::optional<Profilers::Guard> watched;
  if (task.profilers) {
    watched.emplace(*task.profilers);
  }
  task.work->run(task.run);
}

void CpuSide::run_collective(const TwoTierCall& call, uint64_t sequence_number) {
  at::RecordFunction range(at::RecordScope::FUNCTION);
  if (range.isActive()) {
    range.before(call.operation.unit.empty() ? call.title : call.title + (" " + call.operation.unit));
  }
  for (const auto& transport : transports_) {
    transport->set_deadline(Clock::now() + without_report(call.timeout));
  }
  faults_.wait_begins();
  seconds_->run_begins();
  const auto ends = c10::make_scope_exit([this] {
    seconds_->run_ends();
    faults_.wait_ends();
  });
  try {
    if (call.begin) {
      call.begin(*communicator_, {})->finish();
    } else {
      call.run(*communicator_, {});
    }
    call.copy_back();
  } catch (const std::exception& error) {
    if (is_refusal(error, communicator_.get())) {
      throw;
    }
    FaultReport report = call.operation;
    report.sequence_number = sequence_number;
    report.phase = to_string(communicator_->phase());
    report.error = error.what();
    std::rethrow_exception(faults_.explain(report));
  }
}

void CpuSide::Seconds::run_begins() {
  const std::lock_guard lock(mutex_);
  run_began_ = Clock::now();
}

void CpuSide::Seconds::run_ends() {
  const std::lock_guard lock(mutex_);
  ran_ = ran_until_now();
  run_began_.reset();
}

double CpuSide::Seconds::ran_until_now() const {
  return ran_ + (run_began_ ? std::chrono::duration<double>(Clock::now() - *run_began_).count() : 0.0);
}

double CpuSide::Seconds::ran() {
  const std::lock_guard lock(mutex_);
  return ran_until_now();
}

void CpuSide::Seconds::waited_since(double before) {
  const std::lock_guard lock(mutex_);
  waited_ += std::max(0.0, ran_until_now() - before);  // less than 0 after reset()
}

void CpuSide::Seconds::write_to(SideStats& stats) {
  const std::lock_guard lock(mutex_);
  stats.ran_s = ran_until_now();
  stats.waited_s = waited_;
}

void CpuSide::Seconds::reset() {
  const std::lock_guard lock(mutex_);
  ran_ = waited_ = 0;
  run_began_ = run_began_ ? std::optional(Clock::now()) : std::nullopt;
}

std::optional<SideStats> CpuSide::stats() {
  const std::lock_guard lock(mutex_);
  if (!communicator_) {
    return std::nullopt;
  }
  SideStats stats{"cpu", communicator_->stats()};
  seconds_->write_to(stats);
  for (const auto& transport : transports_) {
    stats.path.scratch_bytes += transport->scratch_bytes();
  }
  return stats;
}

void CpuSide::reset_stats() {
  const std::lock_guard lock(mutex_);
  if (communicator_) {
    communicator_->reset_stats();
  }
  seconds_->reset();
}

void CpuSide::connect(at::Device device) {
  if (group_.owns_worlds) {
    world()->eagerConnectSingleDevice(device);
  }
}

void CpuSide::set_timeout(std::chrono::milliseconds timeout) {
  if (group_.owns_worlds) {
    world()->setTimeout(without_report(timeout));
  }
}

bool CpuSide::wait_until_idle(std::chrono::milliseconds patience) {
  std::unique_lock lock(mutex_);
  stopping_ = true;
  wakes_.notify_one();
  const auto is_idle = [this] { return idle(); };
  if (patience == std::chrono::milliseconds::max()) {
    idle_.wait(lock, is_idle);
    return true;
  }
  return idle_.wait_for(lock, patience, is_idle);
}

void CpuSide::run_at_end(const std::function<void(Communicator&)>& action) {
  if (communicator_) {
    action(*communicator_);
  }
}

void CpuSide::abort() {
  std::unique_lock lock(mutex_);
  const std::shared_ptr<Communicator> communicator = communicator_;
  const BackendPtr own = group_.owns_worlds ? world_ : tiers_;
  lock.unlock();
  // In threads: Gloo may wait for ever for a rank that was lost before it connected (TORCH_GLOO_LAZY_INIT).
  std::vector<std::function<void()>> ends;
  if (own) {
    ends.emplace_back([own] { close_connections(*own); });
  }
  communicator ? communicator->abort(std::move(ends)) : void(run_in_threads(std::move(ends), kAbortPatience));
}

void CpuSide::shutdown() {
  std::unique_lock lock(mutex_);
  const auto communicator = std::move(communicator_);
  const auto transports = std::exchange(transports_, {});
  const auto world = std::exchange(world_, nullptr);
  const auto backend_of_tiers = std::exchange(tiers_, nullptr);
  lock.unlock();  // the connections close without the lock
}

}  // namespace isthmus::torch_backend
