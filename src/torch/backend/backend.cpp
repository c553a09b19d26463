#include "torch/backend/backend.h"

#include <c10/util/ScopeExit.h>
#include <pthread.h>

#include <algorithm>
#include <set>
#include <system_error>
#include <utility>

#include "torch/base/interpreter.h"
#include "torch/units/gradient_labels.h"

namespace isthmus::torch_backend {
namespace {

NodeMap map_of(const std::vector<int>& node_of_rank, int size) {
  NodeMap map(node_of_rank);
  ISTHMUS_CHECK(Error, map.world_size() == size, "a node map of ", map.world_size(), " ranks for a group of ", size);
  return map;
}

// How long pending operations may go on when the interpreter exits.
constexpr std::chrono::milliseconds kExitPatience{2000};

// The backends that are not destroyed yet: each is added at the end of its constructor and removed at the start of its
// destructor. A child that is forked in between never destroys it: the destructor would wait for threads that the child
// does not have, and close the parent's connections. The lock is held during a fork, so that the child gets a
// consistent set.
struct Live {
  std::mutex mutex;
  std::set<BackendIsthmus*> backends;
};

Live& live() {
  static auto* live = new Live;  // never destroyed: static objects of torch's own may hold backends until the end
  return *live;
}

// Omits backends that are being destroyed: their destructors wait for the lock, and nobody holds them any more.
std::vector<c10::intrusive_ptr<BackendIsthmus>> hold_live_backends() {
  const std::lock_guard lock(live().mutex);
  std::vector<c10::intrusive_ptr<BackendIsthmus>> held;
  for (BackendIsthmus* backend : live().backends) {
    if (auto* target = static_cast<BackendIsthmus*>(c10::raw::weak_intrusive_ptr::lock(backend))) {
      held.push_back(c10::intrusive_ptr<BackendIsthmus>::reclaim(target));
    }
  }
  return held;
}

// Runs in the child, after a fork.
void keep_live_backends_for_ever() {
  for (BackendIsthmus* backend : live().backends) {
    c10::raw::intrusive_ptr::incref(backend);
  }
  live().backends.clear();
  live().mutex.unlock();
}

// Called before the first backend is made; later calls have no effect.
void watch_forks() {
  static std::once_flag once;
  std::call_once(once, [] {
    pthread_atfork([] { live().mutex.lock(); }, [] { live().mutex.unlock(); }, keep_live_backends_for_ever);
  });
}

}  // namespace

BackendIsthmus::BackendIsthmus(BackendParts parts)
    : Backend(parts.rank, parts.size),
      options_(parts.options),
      group_{.rank = parts.rank,
             .size = parts.size,
             .map = map_of(parts.node_of_rank, parts.size),
             .options = parts.options->values,
             .global_ranks = {parts.options->global_ranks_in_group.begin(), parts.options->global_ranks_in_group.end()},
             .owns_worlds = parts.owns_worlds},
      node_map_source_(std::move(parts.node_map_source)),
      beyond_job_(parts.beyond_job),
      coalesces_(parts.cpu.world->supportsCoalescing()),
      faults_(group_, parts.store, *this),
      cpu_(group_, parts.cpu, faults_, counters_),
      cuda_(parts.cuda.world ? make_cuda_side(group_, std::move(parts.cuda), faults_, counters_) : nullptr),
      no_cuda_(std::move(parts.no_cuda)),
      sides_(cuda_ ? std::vector<Side*>{&cpu_, cuda_.get()} : std::vector<Side*>{&cpu_}),
      registry_(std::make_shared<UnitRegistry>(group_)),
      recogniser_(group_, *registry_, counters_, parts.covers_job, *this),
      units_(group_, sides_, *registry_) {
  init();
  faults_.set_sides({sides_.begin(), sides_.end()});
  for (Side* side : sides_) {
    side->set_timeout(options_->timeout);
  }
  install_label_tracking();
  watch_forks();
  try {
    cpu_.start();
    faults_.start();
  } catch (const std::system_error&) {  // this process can have no more threads
    shutdown_within(std::chrono::milliseconds::max());
    throw;
  }
  const std::lock_guard lock(live().mutex);
  live().backends.insert(this);
}

// A warning that finds no memory ends the process.
BackendIsthmus::~BackendIsthmus() {  // NOLINT(bugprone-exception-escape)
  const WithoutGil without_gil;      // before locking: the holder may wait for a worker that needs the GIL
  {
    const std::lock_guard lock(live().mutex);
    live().backends.erase(this);
  }
  shutdown_or_warn(std::chrono::milliseconds::max());
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
    own->global_ranks_in_group.push_back(group_.global_ranks.at(rank));
  }
  auto part =
      split_function(store, static_cast<int>(self - ranks.begin()), static_cast<int>(ranks.size()), own, beyond_job_);
  if (auto* isthmus_part = dynamic_cast<BackendIsthmus*>(part.get())) {
    std::unique_lock lock(mutex_);
    const auto device = device_;
    lock.unlock();
    isthmus_part->bind(device);
  }
  return part;
}

void BackendIsthmus::setTimeout(std::chrono::milliseconds timeout) {
  for (Side* side : sides_) {
    side->set_timeout(timeout);
  }
  const std::lock_guard lock(mutex_);
  options_->timeout = timeout;
}

uint64_t BackendIsthmus::getSequenceNumberForGroup() {
  group_.process.require_this();
  return counters_.next_sequence_number();
}

c10d::ErrorType BackendIsthmus::getError() {
  const bool is_well = group_.process.is_this() && !faults_.has_failed();
  return is_well ? c10d::ErrorType::SUCCESS : c10d::ErrorType::COMM_ERROR;
}

void BackendIsthmus::abort() {
  if (group_.process.is_this()) {
    faults_.abort();
  }
}

void BackendIsthmus::shutdown() {
  std::exception_ptr failure_of_listener;
  if (group_.process.is_this() && shutdown_listener) {
    try {
      shutdown_listener(*this);
    } catch (const std::exception&) {  // it asks the GPU, which may have failed
      failure_of_listener = std::current_exception();
    }
  }
  shutdown_within(std::chrono::milliseconds::max());
  if (failure_of_listener) {
    std::rethrow_exception(failure_of_listener);
  }
}

std::vector<UnitState> BackendIsthmus::end(bool undo) {
  group_.process.require_this();
  const WithoutGil without_gil;
  std::vector<UnitState> units;
  abort();
  shutdown_within(std::chrono::milliseconds::max(), [&] { units = units_.states_at_end(undo); });
  return units;
}

std::string BackendIsthmus::failure() {
  try {
    if (const std::exception_ptr failure = faults_.failure()) {
      std::rethrow_exception(failure);
    }
  } catch (const std::exception& error) {
    return first_line(error.what());
  }
  return "";
}

void BackendIsthmus::shutdown_at_exit(std::chrono::milliseconds patience) {
  if (group_.process.is_this()) {
    faults_.accept_no_more();
    for (Side* side : sides_) {
      side->leave();
    }
  }
  shutdown_or_warn(patience);
}

void BackendIsthmus::shutdown_or_warn(std::chrono::milliseconds patience) {
  try {
    shutdown_within(patience);
  } catch (const std::exception& error) {
    TORCH_WARN(first_line(error.what()));
  }
}

void BackendIsthmus::shutdown_within(std::chrono::milliseconds patience, const std::function<void()>& last) {
  if (!group_.process.is_this()) {
    return;
  }
  const WithoutGil without_gil;
  faults_.accept_no_more();
  std::exception_ptr failure_of_device;  // thrown when all has ended
  for (Side* side : sides_) {
    try {
      if (!side->wait_until_idle(patience)) {
        abort();
      }
    } catch (const std::exception&) {
      failure_of_device = std::current_exception();
    }
  }
  faults_.stop();
  // Several callers may get here one after the other (shutdown, the exit, the destructor): the first does the work.
  const std::lock_guard once(shutdown_mutex_);
  cpu_.join();
  faults_.join();
  const auto closes_last = c10::make_scope_exit([this] {
    if (cuda_) {
      cuda_->shutdown();
    }
    cpu_.shutdown();
  });
  if (last) {
    last();
  }
  if (failure_of_device) {
    std::rethrow_exception(failure_of_device);
  }
}

Side& BackendIsthmus::cuda_side(const char* call) {
  TORCH_CHECK_WITH(DistBackendError, cuda_ != nullptr, "isthmus: ", call,
                   " of CUDA tensors: this process group works on CPU tensors alone: ", no_cuda_);
  return *cuda_;
}

Side& BackendIsthmus::arrived_on(Side& side, const char* call, bool is_collective) {
  group_.process.require_this();
  if (is_collective) {
    CallbackThreads::await_turn();
  }
  side.arrived(call);
  faults_.require_usable();
  counters_.count_call(call);
  if (is_collective) {  // torch sets the description on this class alone, by a call that is not virtual
    std::call_once(described_, [this] {
      if (group_.owns_worlds) {
        for (Side* each : sides_) {
          each->world()->setGroupDesc(getGroupDesc());
        }
      }
    });
  }
  return side;
}

BackendPtr BackendIsthmus::device_backend() {
  BackendPtr world = cpu_.world();
  return cuda_ ? cuda_->world() : world;
}

std::optional<at::Device> BackendIsthmus::bound_device() {
  const std::lock_guard lock(mutex_);
  return device_ ? device_ : getBoundDeviceId();
}

void BackendIsthmus::bind(std::optional<at::Device> device) {
  const std::lock_guard lock(mutex_);
  device_ = device;
}

void shutdown_all() {
  using Clock = std::chrono::steady_clock;
  const auto deadline = Clock::now() + kExitPatience;
  for (const auto& backend : hold_live_backends()) {
    const auto left = std::chrono::duration_cast<std::chrono::milliseconds>(deadline - Clock::now());
    backend->shutdown_at_exit(std::max(left, std::chrono::milliseconds(0)));
  }
}

}  // namespace isthmus::torch_backend
