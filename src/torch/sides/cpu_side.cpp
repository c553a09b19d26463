#include "torch/sides/cpu_side.h"

#include <c10/util/thread_name.h>

#include <functional>
#include <utility>
#include <vector>

#include "base/threads.h"
#include "torch/sides/c10d_transport.h"

namespace isthmus::torch_backend {
namespace {

std::vector<at::Tensor> list_of(const at::Tensor& tensor) {
  return tensor.defined() ? std::vector<at::Tensor>{tensor} : std::vector<at::Tensor>{};
}

}  // namespace

CpuSide::CpuSide(const Group& group, const CpuParts& parts, FaultWatch& faults, CallCounters& counters)
    : group_(group), faults_(faults), counters_(counters), world_(parts.world) {
  if (group_.two_tier()) {
    make_communicator(parts);
  }
}

void CpuSide::make_communicator(const CpuParts& parts) {
  const NodeMap& map = group_.map;
  Tiers tiers;
  tiers.intra = make_tier("intra", parts.intra, map.node_ranks(map.node(group_.rank)));
  tiers.inter = make_tier("inter", parts.inter, map.rail_ranks(map.local_index(group_.rank)));
  tiers.flat = make_tier("flat", parts.flat, map.all_ranks());
  communicator_ = std::make_unique<Communicator>(map, group_.rank, tiers, group_.options);
}

std::shared_ptr<MessageTransport> CpuSide::make_tier(const char* name, const TierParts& parts,
                                                     const std::vector<int>& group_ranks) {
  std::shared_ptr<MessageTransport> transport;
  if (const auto* own = std::get_if<std::shared_ptr<MessageTransport>>(&parts)) {
    transport = *own;
  } else if (const auto& backend = std::get<BackendPtr>(parts)) {
    std::vector<int> global_ranks;
    std::vector<int> nodes;
    for (const int rank : group_ranks) {
      global_ranks.push_back(group_.global_ranks[rank]);
      nodes.push_back(group_.map.node(rank));
    }
    transport = std::make_shared<C10dTransport>(name, backend, std::move(global_ranks), nodes);
  }
  if (transport) {
    transports_.push_back(transport);
  }
  return transport;
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
  Job job;
  job.operation = call.operation;
  job.timeout = call.timeout;
  job.work = make_work(call);
  job.run = [call = std::move(call)](Communicator& communicator) {
    if (call.begin) {
      communicator.finish_gather_weights(*call.begin(communicator, {}));
    } else {
      call.run(communicator, {});
    }
    call.copy_back();
  };
  return queue(std::move(job));
}

c10::intrusive_ptr<WorkerWork> CpuSide::make_work(const TwoTierCall& call) const {
  auto work =
      c10::make_intrusive<WorkerWork>(group_.rank, call.type, call.title, list_of(call.input), list_of(call.output));
  work->complete_on(callback_threads_);
  work->tell_waits([total = seconds_](double seconds) { total->waited += seconds; });
  return work;
}

void CpuSide::run_between_collectives(const char* name, const std::function<void(Communicator&)>& action) {
  queue_local(name, action)->wait();
}

void CpuSide::post_between_collectives(const char* name, std::function<void(Communicator&)> action) {
  queue_local(name, std::move(action));
}

WorkPtr CpuSide::submitted() {
  return has_communicator() ? queue_local("isthmus:barrier", [](Communicator&) {}) : nullptr;
}

WorkPtr CpuSide::queue_local(const char* name, std::function<void(Communicator&)> action) {
  Job job;
  job.work = c10::make_intrusive<WorkerWork>(group_.rank, c10d::OpType::UNKNOWN, name, std::vector<at::Tensor>{},
                                             std::vector<at::Tensor>{});
  job.work->complete_on(callback_threads_);
  job.run = std::move(action);
  job.sends = false;
  return queue(std::move(job));
}

WorkPtr CpuSide::queue(Job job) {
  group_.process.require_this();
  const std::lock_guard lock(mutex_);
  faults_.require_usable();  // under the lock, so that drain() sees the job or the job is refused
  WorkPtr work = job.work;
  if (job.sends) {
    job.operation.sequence_number = counters_.take_sequence_number();
    job.work->set_sequence_number(job.operation.sequence_number);
  }
  jobs_.push_back(std::move(job));
  wakes_.notify_one();
  return work;
}

void CpuSide::run_worker() {
  c10::setThreadName("isthmus_worker");
  std::unique_lock lock(mutex_);
  while (true) {
    wakes_.wait(lock, [this] { return stopping_ || !jobs_.empty(); });
    if (jobs_.empty()) {
      return;
    }
    {
      Job job = std::move(jobs_.front());
      jobs_.pop_front();
      running_ = true;
      lock.unlock();
      const std::exception_ptr failure = faults_.failure();
      failure ? job.work->fail(failure) : run_job(job);
    }  // the job's tensors are freed here, without the lock
    lock.lock();
    running_ = false;
    if (stopping_ && idle()) {
      idle_.notify_all();
    }
  }
}

void CpuSide::run_job(Job& job) {
  if (job.sends) {
    run_collective(job);
    return;
  }
  try {
    job.run(*communicator_);
    job.work->complete();
  } catch (const std::exception&) {
    job.work->fail(std::current_exception());
  }
}

void CpuSide::run_collective(Job& job) {
  for (const auto& transport : transports_) {
    transport->set_deadline(Clock::now() + without_report(job.timeout));
  }
  faults_.wait_begins();
  const auto begin = Clock::now();
  try {
    job.run(*communicator_);
  } catch (const std::exception& error) {
    FaultReport report = job.operation;
    report.phase = communicator_->phase();
    report.error = error.what();
    const auto explained = faults_.explain(report);
    faults_.wait_ends();
    job.work->fail(explained);
    return;
  }
  faults_.wait_ends();
  seconds_->ran += std::chrono::duration<double>(Clock::now() - begin).count();
  job.work->complete();
}

std::optional<SideStats> CpuSide::stats() {
  const std::lock_guard lock(mutex_);
  if (!communicator_) {
    return std::nullopt;
  }
  SideStats stats{"cpu", communicator_->stats(), seconds_->ran, seconds_->waited};
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
  seconds_->ran = seconds_->waited = 0;
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

bool CpuSide::drain(std::chrono::milliseconds patience) {
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
  BackendPtr world;
  std::vector<std::shared_ptr<MessageTransport>> transports;
  {
    const std::lock_guard lock(mutex_);
    world = world_;
    transports = transports_;
  }
  std::vector<std::function<void()>> ends;
  ends.reserve(transports.size() + 1);
  for (const auto& transport : transports) {
    ends.emplace_back([transport] { transport->abort(); });
  }
  if (world && group_.owns_worlds) {
    ends.emplace_back([world] { close_connections(*world); });
  }
  // Gloo may wait for ever for a rank that was lost before it connected (TORCH_GLOO_LAZY_INIT).
  run_in_threads(std::move(ends), kAbortPatience);
}

void CpuSide::shutdown() {
  std::unique_lock lock(mutex_);
  const auto communicator = std::move(communicator_);
  const auto transports = std::exchange(transports_, {});
  const auto world = std::exchange(world_, nullptr);
  lock.unlock();  // the connections close without the lock
}

}  // namespace isthmus::torch_backend
