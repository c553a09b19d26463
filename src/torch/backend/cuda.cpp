// What BackendIsthmus does for CUDA tensors in the caller's thread, and with what it finds there.
#include <typeinfo>
#include <utility>

#include "isthmus/error.h"
#include "torch/backend/internal.h"

namespace isthmus::torch_backend {
namespace {

// Whether the caller's arguments were refused, so that nothing has happened; else the group has failed.
bool is_refusal(const std::exception& error, const std::string& phase) {
  const bool refuses = typeid(error) == typeid(Error) || typeid(error) == typeid(OptionError);
  return dynamic_cast<const c10::ValueError*>(&error) != nullptr || (refuses && (phase.empty() || phase == "idle"));
}

}  // namespace

WorkPtr BackendIsthmus::enqueue(TwoTierCall call) {
  close_cuda_group();  // its operations would start behind what waits for them
  const auto self = c10::intrusive_ptr<BackendIsthmus>::reclaim_copy(this);
  {
    std::lock_guard lock(mutex_);
    require_usable();
    call.operation.sequence_number = next_sequence_number_++;
    gpu_call_ = call.operation;
  }
  WorkPtr work;
  try {
    work = cuda_->enqueue(call, Watcher(call.operation.sequence_number, self, this));
  } catch (const std::exception& error) {
    if (is_refusal(error, cuda_->phase())) {
      throw;
    }
    FaultReport report = call.operation;
    report.phase = cuda_->phase();
    report.error = first_line(error.what());
    std::rethrow_exception(explain(report));
  }
  std::lock_guard lock(mutex_);
  if (coalescing_) {
    coalesced_.push_back(work);
  }
  return work;
}

void BackendIsthmus::throw_if_failed(c10d::OpType operation, uint64_t sequence_number) {
  {
    std::lock_guard lock(mutex_);
    if (failure_) {
      std::rethrow_exception(failure_);
    }
  }
  FaultReport report;
  report.operation = c10d::opTypeToString(operation);
  report.sequence_number = sequence_number;
  throw_gpu_fault(report);
}

void BackendIsthmus::throw_gpu_fault(FaultReport report) {
  if (!cuda_) {
    return;
  }
  try {
    cuda_->throw_if_faulted();
  } catch (const std::exception& error) {
    report.error = first_line(error.what());
    std::rethrow_exception(explain(report));
  }
}

}  // namespace isthmus::torch_backend
