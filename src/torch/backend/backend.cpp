#include "torch/backend/backend.h"

#include <c10/util/ScopeExit.h>

#include <algorithm>
#include <numeric>
#include <system_error>
#include <utility>

#include "torch/backend/live_backends.h"
#include "torch/base/without_gil.h"
#include "torch/units/gradient_labels.h"

namespace isthmus::torch_backend {
namespace {

std::vector<int> ranks_or_all(const std::vector<uint64_t>& global_ranks, int size) {
  std::vector<int> ranks(global_ranks.begin(), global_ranks.end());
  if (ranks.empty()) {
    ranks.resize(size);
    std::iota(ranks.begin(), ranks.end(), 0);
  }
  return ranks;
}

}  // namespace

BackendIsthmus::BackendIsthmus(BackendParts parts)
    : Backend(parts.rank, parts.size),
      options_(parts.options),
      group_(parts.rank, parts.size, NodeMap(parts.node_of_rank), parts.options->values,
             ranks_or_all(parts.options->global_ranks_in_group, parts.size), parts.owns_worlds),
      node_map_source_(std::move(parts.node_map_source)),
      beyond_job_(parts.beyond_job),
      coalesces_(parts.cpu.world->supportsCoalescing()),
      estimates_time_(parts.cpu.world->supportsTimeEstimation()),
      faults_(group_, parts.store),
      cpu_(group_, parts.cpu, faults_, counters_),
      cuda_(parts.cuda ? make_cuda_side(group_, std::move(*parts.cuda), faults_, counters_,
                                        [this](uint64_t number) { return watcher(number); })
                       : nullptr),
      sides_(cpu_, cuda_.get(), std::move(parts.no_cuda)),
      calls_(group_, options_, counters_, [this](uint64_t number) { return watcher(number); }),
      recogniser_(group_, counters_, parts.covers_job),
      weights_(group_),
      units_(group_, sides_.all()) {
  init();
  faults_.set_sides({sides_.all().begin(), sides_.all().end()});
  for (Side* side : sides_.all()) {
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
  add_live_backend(this);
}

// A warning that finds no memory ends the process.
BackendIsthmus::~BackendIsthmus() {  // NOLINT(bugprone-exception-escape)
  const WithoutGil without_gil;      // before locking: the holder may wait for a worker that needs the GIL
  remove_live_backend(this);
  shutdown_or_warn(std::chrono::milliseconds::max());
}

// Called only after the constructor has returned: nobody holds this before.
Watcher BackendIsthmus::watcher(uint64_t sequence_number) {
  return {sequence_number, c10::intrusive_ptr<BackendIsthmus>::reclaim_copy(this), &faults_};
}

BackendStats BackendIsthmus::stats() {
  group_.process.require_this();
  BackendStats stats = assemble(group_, sides_.all(), counters_);
  stats.node_map_source = node_map_source_;
  stats.options = group_.options.to_string();
  return stats;
}

void BackendIsthmus::reset_stats() {
  group_.process.require_this();
  counters_.reset();
  for (Side* side : sides_.all()) {
    side->reset_stats();
  }
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
  for (Side* side : sides_.all()) {
    side->set_timeout(timeout);
  }
  calls_.set_timeout(timeout);
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

std::vector<SavedUnit> BackendIsthmus::end(bool undo) {
  group_.process.require_this();
  const WithoutGil without_gil;
  std::vector<SavedUnit> units;
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
    for (Side* side : sides_.all()) {
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
  for (Side* side : sides_.all()) {
    try {
      if (!side->drain(patience)) {
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

Side& BackendIsthmus::arrived_on(Side& side, const char* call, bool is_collective) {
  if (is_collective) {
    CallbackThreads::await_turn();
  }
  group_.process.require_this();
  side.arrived(call);
  faults_.require_usable();
  counters_.count_call(call);
  if (is_collective) {  // torch sets the description on this class alone, by a call that is not virtual
    calls_.describe(sides_.all(), getGroupDesc());
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

}  // namespace isthmus::torch_backend
