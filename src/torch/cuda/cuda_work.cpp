#include "torch/cuda/cuda_work.h"

#include <ATen/core/ivalue.h>
#include <ATen/core/jit_type.h>
#include <c10/cuda/CUDACachingAllocator.h>
#include <c10/cuda/CUDAGuard.h>

#include <thread>
#include <utility>

#include "isthmus/error.h"
#include "torch/base/interpreter.h"

namespace isthmus::torch_backend {
namespace {

// The pause between two looks of a blocking wait.
constexpr std::chrono::milliseconds kPause{1};

Stream as_stream(c10::cuda::CUDAStream stream) { return {stream.stream()}; }

}  // namespace

CudaWork::CudaWork(int rank, const TwoTierCall& call, EventPtr done, CudaPlace place, Watcher watcher,
                   std::function<EventPtr()> second_half)
    : Work(rank, call.type),
      outputs_{call.output},
      timeout_(call.timeout),
      done_(std::move(done)),
      second_half_(std::move(second_half)),
      place_(std::move(place)),
      watcher_(std::move(watcher)),
      held_{call.input, call.output, call.written} {
  if (call.input_is_copy) {
    copies_.push_back(call.input);
  }
  if (!call.written.is_same(call.output)) {
    copies_.push_back(call.written);
  }
}

// The tensors are recorded on the aftermath stream, the only one that certainly lives as long as they do.
CudaWork::~CudaWork() {
  if (held_.empty()) {
    return;
  }
  try {
    process_.require_this();
    place_.device->wait(done_, as_stream(place_.aftermath));
    for (const at::Tensor& tensor : held_) {
      c10::cuda::CUDACachingAllocator::recordStream(tensor.storage().data_ptr(), place_.aftermath);
    }
  } catch (const std::exception&) {  // CUDA does not work here: leak the memory
    new std::vector<at::Tensor>(std::move(held_));
  }
}

bool CudaWork::isCompleted() {
  process_.require_this();
  try {
    throw_if_failed();
  } catch (const std::exception&) {
    const std::lock_guard lock(mutex_);
    exception_ = std::current_exception();
    return true;
  }
  const std::unique_lock lock(half_mutex_, std::try_to_lock);
  return lock && !second_half_ && place_.device->done(done_);
}

bool CudaWork::isSuccess() const {
  const std::lock_guard lock(mutex_);
  return !exception_;
}

bool CudaWork::wait(std::chrono::milliseconds timeout) {
  process_.require_this();
  throw_if_failed();
  synchronize();
  if (timeout != kNoTimeout || place_.blocking_wait) {
    block_host(timeout != kNoTimeout ? timeout : timeout_);
    throw_if_failed();
  }
  return true;
}

// Callers keep their tensors alive for the waiting stream. Copies are freed here: the allocator knows the stream on
// which they were allocated, so only the waiting stream is recorded.
void CudaWork::synchronize() {
  Work::synchronize();  // see work.cpp
  const auto waiting = c10::cuda::getCurrentCUDAStream(device().index());
  place_.device->wait(done(), as_stream(waiting));
  std::vector<at::Tensor> released;  // freed without the lock
  std::vector<at::Tensor> copies;
  {
    const std::lock_guard lock(mutex_);
    released.swap(held_);
    copies.swap(copies_);
  }
  for (const at::Tensor& copy : copies) {
    c10::cuda::CUDACachingAllocator::recordStream(copy.storage().data_ptr(), waiting);
  }
}

// The Future may free its tensors at any time: it records its own streams with the allocator.
c10::intrusive_ptr<c10::ivalue::Future> CudaWork::getFuture() {
  process_.require_this();
  const EventPtr whole = done();
  const std::lock_guard lock(mutex_);
  if (!future_) {
    place_.device->wait(whole, as_stream(place_.aftermath));
    const c10::cuda::CUDAStreamGuard on_stream(place_.aftermath);
    future_ = c10::make_intrusive<c10::ivalue::Future>(c10::ListType::create(c10::TensorType::get()),
                                                       std::vector<c10::Device>{device()});
    future_->markCompleted(c10::IValue(outputs_));
  }
  return future_;
}

EventPtr CudaWork::done() {
  const std::lock_guard lock(half_mutex_);
  if (second_half_) {
    done_ = second_half_();
    second_half_ = nullptr;
  }
  return done_;
}

void CudaWork::throw_if_failed() {
  if (const auto owner = watcher_.owner.lock()) {
    watcher_.faults->throw_if_failed(opType_, watcher_.sequence_number);
  }
}

void CudaWork::block_host(std::chrono::milliseconds timeout) {
  using Clock = std::chrono::steady_clock;
  const auto deadline = Clock::now() + timeout;
  const EventPtr whole = done();
  while (!place_.device->done(whole)) {
    throw_if_failed();
    if (Clock::now() > deadline) {
      const auto text = detail::concatenate("not done after ", timeout.count(), " ms");
      const auto owner = watcher_.owner.lock();
      TORCH_CHECK_WITH(DistBackendError, owner, "isthmus: ", c10d::opTypeToString(opType_), ": ", text);
      std::rethrow_exception(watcher_.faults->explain(opType_, watcher_.sequence_number, text));
    }
    run_signal_handlers();
    std::this_thread::sleep_for(kPause);
  }
}

}  // namespace isthmus::torch_backend
