// How BackendIsthmus calls its world backends, one by one or several at once.
#include <utility>

#include "torch/backend/internal.h"

namespace isthmus::torch_backend {
namespace {

// After a call for CUDA tensors: until the first look for other ranks' reports.
constexpr std::chrono::milliseconds kFirstGpuLookPause{500};

}  // namespace

void BackendIsthmus::arrived(const char* call, bool cuda) {
  message_arrived(call, cuda);
  std::lock_guard lock(mutex_);
  describe_world_backends();
}

void BackendIsthmus::message_arrived(const char* call, bool cuda) {
  process_.require_this();
  if (cuda) {
    require_cuda(call);
    note_gpu_call(call);
  }
  std::lock_guard lock(mutex_);
  require_usable();
  ++calls_[call];
}

void BackendIsthmus::require_cuda(const char* call) const {
  TORCH_CHECK_WITH(DistBackendError, cuda_ != nullptr, "isthmus: ", call,
                   " of CUDA tensors: this process group works on ", "CPU tensors alone: ", no_cuda_);
}

void BackendIsthmus::note_gpu_call(const char* call) {
  FaultReport report;
  report.operation = call;
  {
    std::lock_guard lock(mutex_);
    report.sequence_number = next_sequence_number_;
    gpu_call_ = report;
    gpu_look_pause_ = kFirstGpuLookPause;
    next_gpu_look_ = Clock::now() + gpu_look_pause_;
  }
  throw_gpu_fault(report);
}

WorkPtr BackendIsthmus::forward(bool cuda, const std::function<WorkPtr(c10d::Backend&)>& call) {
  if (!cuda) {
    return issued(call(*world_backend()), false);
  }
  try {
    const bool in_cuda_group = open_cuda_group();
    return issued(call(*cuda_->world()), in_cuda_group);
  } catch (const c10::DistError& error) {  // NCCL's, or of the store that its ranks meet at
    std::rethrow_exception(explain(last_gpu_call(first_line(error.what_without_backtrace()))));
  }
}

FaultReport BackendIsthmus::last_gpu_call(std::string error) {
  std::lock_guard lock(mutex_);
  FaultReport report = gpu_call_;
  report.error = std::move(error);
  return report;
}

// NCCL's Works are null where the caller's stream alone runs the operation.
WorkPtr BackendIsthmus::issued(WorkPtr work, bool in_cuda_group) {
  std::lock_guard lock(mutex_);
  if (!work || !c10d::isP2POp(work->retrieveOpType())) {  // whoever sends or receives knows the peer
    const uint64_t number = next_sequence_number_++;
    if (work) {
      const auto self = c10::intrusive_ptr<BackendIsthmus>::reclaim_copy(this);
      work = c10::make_intrusive<WatchedWork>(work, Watcher(number, self, this));
    }
  }
  if (work && coalescing_ && !in_cuda_group) {
    coalesced_.push_back(work);
  }
  return work;
}

// Must not throw: torch would drop later collectives without a word.
void BackendIsthmus::startCoalescing() {
  if (!process_.is_this()) {
    return;
  }
  try {
    close_cuda_group();  // torch does not end a block in which a call raised
  } catch (const std::exception&) {
    // what was in it has failed where it was called
  }
  std::vector<WorkPtr> left_over;  // tensors go without the lock
  std::lock_guard lock(mutex_);
  coalescing_ = true;
  left_over.swap(coalesced_);
}

WorkPtr BackendIsthmus::endCoalescing() {
  process_.require_this();
  close_cuda_group();
  std::lock_guard lock(mutex_);
  coalescing_ = false;
  return c10::make_intrusive<CombinedWork>(getRank(), c10d::OpType::COALESCED, std::exchange(coalesced_, {}));
}

// Torch does not say of which tensors it starts to coalesce operations.
bool BackendIsthmus::open_cuda_group() {
  {
    std::lock_guard lock(mutex_);
    if (!coalescing_ || cuda_group_open_) {
      return cuda_group_open_;
    }
    cuda_group_open_ = true;
  }
  cuda_->world()->startCoalescing();
  return true;
}

void BackendIsthmus::close_cuda_group() {
  {
    std::lock_guard lock(mutex_);
    if (!std::exchange(cuda_group_open_, false)) {
      return;
    }
  }
  const WorkPtr work = cuda_->world()->endCoalescing();
  std::lock_guard lock(mutex_);
  if (work) {
    coalesced_.push_back(work);
  }
}

BackendPtr BackendIsthmus::world_backend() {
  process_.require_this();
  std::lock_guard lock(mutex_);
  require_usable();
  return world_;
}

BackendPtr BackendIsthmus::device_backend() {
  const BackendPtr world = world_backend();
  return cuda_ ? cuda_->world() : world;
}

// Torch's flight recorder shows the world backend's calls under its description, which torch gives to this class alone,
// and not as a virtual call.
void BackendIsthmus::describe_world_backends() {
  if (!std::exchange(described_, true)) {
    world_->setGroupDesc(getGroupDesc());
    if (cuda_) {
      cuda_->describe(getGroupDesc());
    }
  }
}

}  // namespace isthmus::torch_backend
