#include "torch/works/stand_ins.h"

#include <ATen/MemoryOverlap.h>

#include <algorithm>
#include <mutex>
#include <utility>

#include "torch/base/tensors.h"

namespace isthmus::torch_backend {

namespace {

class WaiterWritesWork final : public c10d::Work {
 public:
  WaiterWritesWork(WorkPtr work, std::vector<at::Tensor> outputs, std::function<void()> write)
      : Work(-1, work->retrieveOpType()),
        work_(std::move(work)),
        outputs_(std::move(outputs)),
        write_(std::move(write)) {}

  bool isCompleted() override {
    if (!work_->isCompleted()) {
      return false;
    }
    if (!work_->exception()) {
      std::call_once(written_, write_);
    }
    return true;
  }
  bool isSuccess() const override { return work_->isSuccess(); }
  std::exception_ptr exception() const override { return work_->exception(); }
  std::vector<at::Tensor> result() override { return outputs_; }
  bool wait(std::chrono::milliseconds timeout) override {
    const bool is_done = work_->wait(timeout);
    if (is_done) {
      std::call_once(written_, write_);
    }
    Work::synchronize();
    return is_done;
  }
  c10::intrusive_ptr<c10::ivalue::Future> getFuture() override { return work_->getFuture(); }

 private:
  const WorkPtr work_;
  const std::vector<at::Tensor> outputs_;
  const std::function<void()> write_;
  std::once_flag written_;
};

}  // namespace

bool has_gaps(const at::Tensor& tensor) {
  return tensor.layout() == at::kStrided && !tensor.is_non_overlapping_and_dense();
}

bool is_not_contiguous(const at::Tensor& tensor) { return tensor.layout() == at::kStrided && !tensor.is_contiguous(); }

at::Tensor at_least_1d(const at::Tensor& tensor) {
  const at::NoGradGuard no_grad;
  return tensor.dim() == 0 ? tensor.view({1}) : tensor;
}

std::vector<at::Tensor> at_least_1d(const std::vector<at::Tensor>& tensors) {
  std::vector<at::Tensor> views;
  views.reserve(tensors.size());
  for (const auto& tensor : tensors) {
    views.push_back(at_least_1d(tensor));
  }
  return views;
}

StandIns::StandIns(const char* call, const std::vector<at::Tensor>& tensors, bool (*needed)(const at::Tensor&),
                   bool written)
    : originals_(tensors), written_(written) {
  for (const auto& tensor : tensors) {
    const bool is_needed = needed != nullptr && needed(tensor);
    TORCH_CHECK_VALUE(!(is_needed && written) || at::has_internal_overlap(tensor) != at::MemOverlap::Yes,
                      "isthmus: ", call, " into a tensor of sizes ", tensor.sizes(), " and strides ", tensor.strides(),
                      ": its elements share memory");
    tensors_.push_back(is_needed ? contiguous(tensor) : tensor);
  }
}

bool StandIns::all_same() const {
  return std::equal(originals_.begin(), originals_.end(), tensors_.begin(),
                    [](const auto& original, const auto& tensor) { return original.is_same(tensor); });
}

std::function<void()> StandIns::write_back() const {
  return [written = written_, originals = originals_, tensors = tensors_] {
    for (size_t i = 0; written && i < originals.size(); ++i) {
      if (!tensors[i].is_alias_of(originals[i])) {
        write(originals[i], tensors[i].view(originals[i].sizes()));
      }
    }
  };
}

WorkPtr StandIns::written_back(const WorkPtr& work) const {
  if (all_same()) {
    return work;
  }
  // The analyzer does not see that the function is moved into what follows the Work.
  return followed_by(work, originals_, write_back());  // NOLINT(clang-analyzer-cplusplus.NewDeleteLeaks)
}

WorkPtr StandIns::written_back_by_waiter(const WorkPtr& work) const {
  if (all_same()) {
    return work;
  }
  return c10::make_intrusive<WaiterWritesWork>(work, originals_, write_back());
}

}  // namespace isthmus::torch_backend
