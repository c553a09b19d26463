#include "torch/backend.h"

#include <pybind11/pybind11.h>

#include <algorithm>
#include <numeric>
#include <set>
#include <utility>

#include "isthmus/error.h"

namespace isthmus::torch_backend {
namespace {

// What a timeout that means "never" becomes: deadlines are counted in nanoseconds.
constexpr std::chrono::milliseconds kLongestTimeout = std::chrono::hours(24 * 3650);
// How long a rank that failed waits for the others' reports.
constexpr std::chrono::milliseconds kReportPatience{2000};
// An operation that has been running for longer is watched: has another rank reported a failure?
constexpr std::chrono::milliseconds kQuietTime{500};
constexpr std::chrono::milliseconds kWatchPause{500};
// How long operations that are under way may go on when the interpreter exits.
constexpr std::chrono::milliseconds kExitPatience{2000};

std::mutex live_mutex;
std::set<BackendIsthmus*> live_backends;

SplitFunction& split_function() {
  static SplitFunction function;
  return function;
}

// What the hops of an operation may take, so that its error, which names who is missing, comes within the timeout.
std::chrono::milliseconds without_report(std::chrono::milliseconds timeout) {
  timeout = std::min(timeout, kLongestTimeout);
  return timeout - std::min(kReportPatience, timeout / 4);
}

std::vector<int> ranks_or_all(const std::vector<uint64_t>& global_ranks, int size) {
  std::vector<int> ranks(global_ranks.begin(), global_ranks.end());
  if (ranks.empty()) {
    ranks.resize(size);
    std::iota(ranks.begin(), ranks.end(), 0);
  }
  return ranks;
}

// Releases the GIL where this thread has it. Torch calls and drops backends with it or without, and a worker may need
// it to get done.
class WithoutGil {
 public:
  WithoutGil() {
    if (Py_IsInitialized() != 0 && PyGILState_Check() != 0) {
      released_.emplace();
    }
  }

 private:
  std::optional<pybind11::gil_scoped_release> released_;
};

std::exception_ptr dist_error(const std::string& text) {
  try {
    TORCH_CHECK_WITH(DistBackendError, false, text);
  } catch (...) {
    return std::current_exception();
  }
}

}  // namespace

void set_split_function(SplitFunction function) { split_function() = std::move(function); }

void shutdown_all() {
  std::lock_guard lock(live_mutex);
  for (BackendIsthmus* backend : live_backends) {
    backend->shutdown_within(kExitPatience);
  }
}

BackendIsthmus::BackendIsthmus(BackendParts parts)
    : Backend(parts.rank, parts.size),
      options_(parts.options),
      values_(parts.options->values),
      map_(parts.node_of_rank),
      global_ranks_(ranks_or_all(parts.options->global_ranks_in_group, parts.size)),
      board_(std::make_unique<FaultBoard>(parts.store, parts.rank, global_ranks_)),
      world_(parts.world),
      namer_(ranks_text(global_ranks_)) {
  init();
  ISTHMUS_CHECK(Error, map_.world_size() == parts.size, "a node map of ", map_.world_size(), " ranks for a group of ",
                parts.size);
  world_->setTimeout(without_report(options_->timeout));
  install_label_tracking();
  if (map_.two_tier()) {
    make_communicator(parts);
    worker_ = std::thread([this] { run_worker(); });
  }
  if (parts.size > 1) {
    watch_ = std::thread([this] { run_watch(); });
  }
  std::lock_guard lock(live_mutex);
  live_backends.insert(this);
}

BackendIsthmus::~BackendIsthmus() {
  const WithoutGil without_gil;  // before the lock: who holds that may wait for a worker that needs the GIL
  {
    std::lock_guard lock(live_mutex);
    live_backends.erase(this);
  }
  shutdown();
}

void BackendIsthmus::make_communicator(const BackendParts& parts) {
  std::vector<int> everyone(getSize());
  std::iota(everyone.begin(), everyone.end(), 0);
  Tiers tiers;
  tiers.intra = make_tier("intra", parts.intra, map_.node_ranks(map_.node(getRank())));
  tiers.inter = make_tier("inter", parts.inter, map_.rail_ranks(map_.local_index(getRank())));
  tiers.flat = make_tier("flat", parts.flat, everyone);
  communicator_ = std::make_unique<Communicator>(map_, getRank(), tiers, values_);
}

std::shared_ptr<C10dTransport> BackendIsthmus::make_tier(const char* name, const BackendPtr& backend,
                                                         const std::vector<int>& group_ranks) {
  if (!backend) {
    return nullptr;
  }
  std::vector<int> global_ranks;
  std::vector<int> nodes;
  for (const int rank : group_ranks) {
    global_ranks.push_back(global_ranks_[rank]);
    nodes.push_back(map_.node(rank));
  }
  transports_.push_back(std::make_shared<C10dTransport>(name, backend, std::move(global_ranks), std::move(nodes)));
  return transports_.back();
}

BackendStats BackendIsthmus::stats() {
  std::lock_guard lock(mutex_);
  BackendStats stats;
  stats.node_map = map_.to_string();
  stats.options = values_.to_string();
  stats.calls = calls_;
  if (communicator_) {
    stats.path = communicator_->stats();
  } else if (!two_tier()) {
    stats.notes.push_back("no two-tier path: it needs several nodes with equally many ranks, and this group has " +
                          stats.node_map);
  } else {
    stats.notes.push_back("shut down");
  }
  for (const auto& [reason, calls] : exact_calls_) {
    stats.path.exact_calls[reason] += calls;
  }
  return stats;
}

void BackendIsthmus::reset_stats() {
  std::lock_guard lock(mutex_);
  calls_.clear();
  exact_calls_.clear();
  if (communicator_) {
    communicator_->reset_stats();
  }
}

void BackendIsthmus::startCoalescing() {
  std::lock_guard lock(mutex_);
  coalescing_ = true;
}

WorkPtr BackendIsthmus::endCoalescing() {
  std::lock_guard lock(mutex_);
  coalescing_ = false;
  return c10::make_intrusive<CombinedWork>(getRank(), c10d::OpType::COALESCED, std::exchange(coalesced_, {}));
}

BackendPtr BackendIsthmus::split(const c10::intrusive_ptr<c10d::Store>& store, const std::vector<int>& ranks,
                                 const c10::intrusive_ptr<Options>& options) {
  const auto self = std::find(ranks.begin(), ranks.end(), getRank());
  if (self == ranks.end()) {
    return nullptr;
  }
  const auto* given = dynamic_cast<const BackendOptions*>(options.get());
  auto own = given ? c10::make_intrusive<BackendOptions>(*given) : c10::make_intrusive<BackendOptions>(*options_);
  own->timeout = options ? options->timeout : own->timeout;
  own->global_ranks_in_group.clear();
  for (const int rank : ranks) {
    own->global_ranks_in_group.push_back(global_ranks_.at(rank));
  }
  return split_function()(store, static_cast<int>(self - ranks.begin()), static_cast<int>(ranks.size()), own);
}

void BackendIsthmus::setTimeout(std::chrono::milliseconds timeout) {
  const BackendPtr world = world_backend();
  world->setTimeout(without_report(timeout));
  std::lock_guard lock(mutex_);
  options_->timeout = timeout;
}

void BackendIsthmus::setSequenceNumberForGroup() { world_backend()->setSequenceNumberForGroup(); }

uint64_t BackendIsthmus::getSequenceNumberForGroup() { return world_backend()->getSequenceNumberForGroup(); }

c10d::ErrorType BackendIsthmus::getError() {
  std::lock_guard lock(mutex_);
  return failure_ ? c10d::ErrorType::COMM_ERROR : c10d::ErrorType::SUCCESS;
}

void BackendIsthmus::abort() {
  fail_from_now_on(dist_error("isthmus: this process group was aborted"));
  close_all_connections();
}

void BackendIsthmus::shutdown() { shutdown_within(std::chrono::milliseconds::max()); }

void BackendIsthmus::shutdown_within(std::chrono::milliseconds patience) {
  const WithoutGil without_gil;
  {
    std::unique_lock lock(mutex_);
    stopping_ = true;
    changed_.notify_all();
    const auto idle = [this] { return jobs_.empty() && !running_; };
    if (patience == std::chrono::milliseconds::max()) {
      changed_.wait(lock, idle);
    } else if (!changed_.wait_for(lock, patience, idle)) {
      lock.unlock();
      abort();
    }
  }
  // Several callers may get here one after the other (shutdown, the exit, the destructor): the first does the work.
  std::lock_guard once(shutdown_mutex_);
  for (std::thread* thread : {&worker_, &watch_}) {
    if (thread->joinable()) {
      thread->join();
    }
  }
  std::unique_lock lock(mutex_);
  const auto communicator = std::move(communicator_);
  const auto transports = std::exchange(transports_, {});
  const auto world = std::exchange(world_, nullptr);
  lock.unlock();  // the connections close without it
}

WorkPtr BackendIsthmus::submit(Job job) {
  std::lock_guard lock(mutex_);
  require_usable();
  job.operation.sequence_number = next_sequence_number_++;
  job.work->set_sequence_number(job.operation.sequence_number);
  const WorkPtr work = job.work;
  if (coalescing_) {
    coalesced_.push_back(work);
  }
  jobs_.push_back(std::move(job));
  changed_.notify_all();
  return work;
}

WorkPtr BackendIsthmus::issued(WorkPtr work) {
  if (!c10d::isP2POp(work->retrieveOpType())) {  // whoever sends or receives knows the peer
    work = c10::make_intrusive<WatchedWork>(work, c10::intrusive_ptr<BackendIsthmus>::reclaim_copy(this), this);
  }
  std::lock_guard lock(mutex_);
  if (coalescing_) {
    coalesced_.push_back(work);
  }
  return work;
}

BackendPtr BackendIsthmus::world(const char* call) {
  std::lock_guard lock(mutex_);
  require_usable();
  ++calls_[call];
  return world_;
}

BackendPtr BackendIsthmus::world_backend() {
  std::lock_guard lock(mutex_);
  require_usable();
  return world_;
}

void BackendIsthmus::require_usable() const {
  if (failure_) {
    std::rethrow_exception(failure_);
  }
  TORCH_CHECK_WITH(DistBackendError, !stopping_, "isthmus: this process group is shut down");
}

void BackendIsthmus::count_exact(const char* reason) {
  std::lock_guard lock(mutex_);
  ++exact_calls_[reason];
}

std::chrono::milliseconds BackendIsthmus::timeout_or_default(std::chrono::milliseconds timeout) {
  std::lock_guard lock(mutex_);
  return timeout > kNoTimeout ? timeout : options_->timeout;
}

void BackendIsthmus::run_worker() {
  std::unique_lock lock(mutex_);
  while (true) {
    changed_.wait(lock, [this] { return stopping_ || !jobs_.empty(); });
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
    changed_.notify_all();
  }
}

void BackendIsthmus::run_job(Job& job) {
  for (const auto& transport : transports_) {
    transport->set_deadline(Clock::now() + without_report(job.timeout));
  }
  wait_begins();
  try {
    job.run();
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
  const auto error =
      dist_error(detail::concatenate("isthmus: ", describe(report), " failed on rank ", global_ranks_[getRank()],
                                     report.phase.empty() ? "" : " in phase ", report.phase, ": ", report.error, ". ",
                                     board_->diagnose(report, kReportPatience), "."));
  fail_from_now_on(error);
  return error;
}

std::exception_ptr BackendIsthmus::explain(c10d::Work& work, const std::string& error) {
  FaultReport report;
  report.operation = c10d::opTypeToString(work.retrieveOpType());
  report.sequence_number = work.getSequencenumber();
  report.error = error.substr(0, error.find('\n'));
  return explain(report);
}

void BackendIsthmus::wait_begins() {
  std::lock_guard lock(mutex_);
  if (busy_++ == 0) {
    busy_since_ = Clock::now();
    changed_.notify_all();
  }
}

void BackendIsthmus::wait_ends() {
  std::lock_guard lock(mutex_);
  --busy_;
}

void BackendIsthmus::run_watch() {
  std::unique_lock lock(mutex_);
  while (true) {
    changed_.wait(lock, [this] { return stopping_ || busy_ > 0; });
    if (changed_.wait_for(lock, kWatchPause, [this] { return stopping_ && !running_; })) {
      return;
    }
    if (busy_ == 0 || failure_ || Clock::now() - busy_since_ < kQuietTime) {
      continue;
    }
    lock.unlock();
    if (board_->any_report()) {
      close_all_connections();
    }
    lock.lock();
  }
}

void BackendIsthmus::fail_from_now_on(std::exception_ptr error) {
  std::lock_guard lock(mutex_);
  failure_ = failure_ ? failure_ : std::move(error);
}

void BackendIsthmus::close_all_connections() {
  BackendPtr world;
  std::vector<std::shared_ptr<C10dTransport>> transports;
  {
    std::lock_guard lock(mutex_);
    world = world_;
    transports = transports_;
  }
  for (const auto& transport : transports) {
    transport->abort();
  }
  if (world) {
    close_connections(*world);
  }
}

}  // namespace isthmus::torch_backend
