#include "torch/backend/backend.h"

#include <pthread.h>

#include <algorithm>
#include <numeric>
#include <set>
#include <system_error>
#include <utility>

#include "isthmus/error.h"
#include "torch/backend/internal.h"

namespace isthmus::torch_backend {
namespace {

// How long operations that are under way may go on when the interpreter exits.
constexpr std::chrono::milliseconds kExitPatience{2000};
constexpr std::chrono::milliseconds kDrainPause{1};

// The backends that are not destroyed yet.
struct Live {
  std::mutex mutex;
  std::set<BackendIsthmus*> backends;
};

Live& live() {
  static auto* live = new Live;  // never destroyed: static objects of torch's own may hold backends until the end
  return *live;
}

SplitFunction& split_function() {
  static SplitFunction function;
  return function;
}

std::vector<int> ranks_or_all(const std::vector<uint64_t>& global_ranks, int size) {
  std::vector<int> ranks(global_ranks.begin(), global_ranks.end());
  if (ranks.empty()) {
    ranks.resize(size);
    std::iota(ranks.begin(), ranks.end(), 0);
  }
  return ranks;
}

// Without those that are about to be destroyed: these wait for the lock, and nobody holds them any more.
std::vector<c10::intrusive_ptr<BackendIsthmus>> hold_live_backends() {
  std::lock_guard lock(live().mutex);
  std::vector<c10::intrusive_ptr<BackendIsthmus>> held;
  for (BackendIsthmus* backend : live().backends) {
    if (auto* target = static_cast<BackendIsthmus*>(c10::raw::weak_intrusive_ptr::lock(backend))) {
      held.push_back(c10::intrusive_ptr<BackendIsthmus>::reclaim(target));
    }
  }
  return held;
}

void keep_live_backends_for_ever() {
  for (BackendIsthmus* backend : live().backends) {
    backend->keep_for_ever();
  }
  live().backends.clear();
  live().mutex.unlock();
}

// See BackendIsthmus. The lock is held over the fork, which gives the child a whole set.
void watch_forks() {
  static std::once_flag once;
  std::call_once(once, [] {
    pthread_atfork([] { live().mutex.lock(); }, [] { live().mutex.unlock(); }, keep_live_backends_for_ever);
  });
}

}  // namespace

void set_split_function(SplitFunction function) { split_function() = std::move(function); }

void shutdown_all() {
  const auto deadline = Clock::now() + kExitPatience;
  for (const auto& backend : hold_live_backends()) {
    const auto left = std::chrono::duration_cast<std::chrono::milliseconds>(deadline - Clock::now());
    backend->shutdown_within(std::max(left, std::chrono::milliseconds(0)));
  }
}

BackendIsthmus::BackendIsthmus(BackendParts parts)
    : Backend(parts.rank, parts.size),
      options_(parts.options),
      values_(parts.options->values),
      map_(parts.node_of_rank),
      node_map_source_(std::move(parts.node_map_source)),
      coalesces_(parts.world->supportsCoalescing()),
      estimates_time_(parts.world->supportsTimeEstimation()),
      global_ranks_(ranks_or_all(parts.options->global_ranks_in_group, parts.size)),
      board_(std::make_unique<FaultBoard>(parts.store, parts.rank, global_ranks_)),
      no_cuda_(std::move(parts.no_cuda)),
      cuda_(parts.cuda ? make_cuda_side(std::move(*parts.cuda), map_, parts.rank, values_) : nullptr),
      world_(parts.world),
      units_(parts.covers_job, gradients_in_backward(values_.gradients)),
      gradients_(values_.gradients),
      units_on_gpu_(cuda_ != nullptr) {
  init();
  ISTHMUS_CHECK(Error, map_.world_size() == parts.size, "a node map of ", map_.world_size(), " ranks for a group of ",
                parts.size);
  world_->setTimeout(without_report(options_->timeout));
  install_label_tracking();
  watch_forks();
  if (two_tier()) {
    make_communicator(parts);
  }
  start_threads();
  std::lock_guard lock(live().mutex);
  live().backends.insert(this);
}

// What fails here ends the process: a group that cannot leave its GPU or its peers would leave them waiting.
BackendIsthmus::~BackendIsthmus() {  // NOLINT(bugprone-exception-escape)
  const WithoutGil without_gil;      // before the lock: who holds that may wait for a worker that needs the GIL
  {
    std::lock_guard lock(live().mutex);
    live().backends.erase(this);
  }
  shutdown();
}

void BackendIsthmus::start_threads() {
  try {
    if (two_tier()) {
      worker_ = std::thread([this] { run_worker(); });
    }
    if (getSize() > 1) {
      watch_ = std::thread([this] { run_watch(); });
    }
  } catch (const std::system_error&) {  // this process may have no more
    shutdown();
    throw;
  }
}

void BackendIsthmus::make_communicator(const BackendParts& parts) {
  std::vector<int> everyone(getSize());
  std::iota(everyone.begin(), everyone.end(), 0);
  Tiers tiers;
  tiers.intra = make_tier("intra", parts.intra, map_.node_ranks(map_.node(getRank())));
  tiers.inter = make_tier("inter", parts.inter, map_.rail_ranks(map_.local_index(getRank())));
  tiers.flat = make_tier("flat", parts.flat, everyone);
  communicator_ = std::make_unique<Communicator>(map_, getRank(), tiers, values_);
  communicator_->ask_for_exposure([exposure = exposure_](uint64_t unit) { return exposure->take_share(unit); });
}

std::shared_ptr<MessageTransport> BackendIsthmus::make_tier(const char* name, const TierParts& parts,
                                                            const std::vector<int>& group_ranks) {
  std::shared_ptr<MessageTransport> transport;
  if (const auto* own = std::get_if<std::shared_ptr<MessageTransport>>(&parts)) {
    transport = *own;
  } else if (const auto& backend = std::get<BackendPtr>(parts)) {
    std::vector<int> global_ranks;
    std::vector<int> nodes;
    for (const int rank : group_ranks) {
      global_ranks.push_back(global_ranks_[rank]);
      nodes.push_back(map_.node(rank));
    }
    transport = std::make_shared<C10dTransport>(name, backend, std::move(global_ranks), nodes);
  }
  if (transport) {
    transports_.push_back(transport);
  }
  return transport;
}

// Destroying it would wait for threads that a forked child does not have.
void BackendIsthmus::keep_for_ever() { c10::raw::intrusive_ptr::incref(this); }

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
  auto part = split_function()(store, static_cast<int>(self - ranks.begin()), static_cast<int>(ranks.size()), own);
  if (auto* isthmus_part = dynamic_cast<BackendIsthmus*>(part.get())) {
    isthmus_part->device_ = device_;
  }
  return part;
}

void BackendIsthmus::setTimeout(std::chrono::milliseconds timeout) {
  const BackendPtr world = world_backend();
  world->setTimeout(without_report(timeout));
  if (cuda_) {
    cuda_->set_timeout(timeout);
  }
  std::lock_guard lock(mutex_);
  options_->timeout = timeout;
}

void BackendIsthmus::setSequenceNumberForGroup() { world_backend()->setSequenceNumberForGroup(); }

uint64_t BackendIsthmus::getSequenceNumberForGroup() {
  process_.require_this();
  std::lock_guard lock(mutex_);
  return next_sequence_number_;
}

c10d::ErrorType BackendIsthmus::getError() {
  if (!process_.is_this()) {
    return c10d::ErrorType::COMM_ERROR;
  }
  std::lock_guard lock(mutex_);
  return failure_ ? c10d::ErrorType::COMM_ERROR : c10d::ErrorType::SUCCESS;
}

void BackendIsthmus::abort() {
  if (!process_.is_this()) {
    return;
  }
  fail_from_now_on(dist_error("isthmus: this process group was aborted"));
  close_all_connections();
}

void BackendIsthmus::shutdown() { shutdown_within(std::chrono::milliseconds::max()); }

void BackendIsthmus::shutdown_within(std::chrono::milliseconds patience) {
  if (!process_.is_this()) {
    return;
  }
  const WithoutGil without_gil;
  {
    std::unique_lock lock(mutex_);
    stopping_ = true;
    worker_wakes_.notify_one();
    const auto is_idle = [this] { return idle(); };
    if (patience == std::chrono::milliseconds::max()) {
      idle_.wait(lock, is_idle);
    } else if (!idle_.wait_for(lock, patience, is_idle)) {
      lock.unlock();
      abort();
    }
  }
  drain_gpu(patience);
  {
    std::lock_guard lock(mutex_);
    stopped_ = true;
    watch_wakes_.notify_one();
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
  if (cuda_ && world) {
    cuda_->shutdown();
  }
}

// While the watch goes on: where a peer has failed, it ends what would never end.
void BackendIsthmus::drain_gpu(std::chrono::milliseconds patience) {
  if (!cuda_) {
    return;
  }
  const bool for_ever = patience == std::chrono::milliseconds::max();
  const auto deadline = for_ever ? Clock::time_point::max() : Clock::now() + patience;
  while (!cuda_->idle() && getError() == c10d::ErrorType::SUCCESS) {
    if (Clock::now() >= deadline) {
      abort();
      return;
    }
    std::this_thread::sleep_for(kDrainPause);
  }
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

}  // namespace isthmus::torch_backend
