// The Work of an operation on a GPU.
#pragma once

#include <c10/cuda/CUDAStream.h>

#include <chrono>
#include <functional>
#include <memory>
#include <mutex>
#include <torch/csrc/distributed/c10d/Work.hpp>
#include <vector>

#include "isthmus/device.h"
#include "torch/base/group.h"
#include "torch/sides/side.h"
#include "torch/works/work.h"

namespace isthmus::torch_backend {

struct CudaPlace {
  std::shared_ptr<Device> device;
  c10::cuda::CUDAStream aftermath;  // for work that follows an operation: copies, Futures
  bool blocking_wait = false;       // wait() blocks the host, as NCCL's Works do with TORCH_NCCL_BLOCKING_WAIT
};

// wait() and synchronize() order the current stream; they block the host only with a timeout or blocking_wait. Until
// the first of these calls, the Work holds the operation's tensors. If the Work is destroyed before, it tells the
// allocator that they are still in use. wait() throws a fault that a decoder has found on the GPU, if the host can see
// it by then.
//
// An operation in halves: the first call of wait(), synchronize() or getFuture() does the second one, for which it may
// block the host. Until then the operation has not completed. Without such a call there is no second half.
class CudaWork final : public c10d::Work {
 public:
  // done: the event passes when the operation is done. second_half: then `done` is of the first half, and this returns
  // that of the whole operation.
  CudaWork(int rank, const TwoTierCall& call, EventPtr done, CudaPlace place, Watcher watcher,
           std::function<EventPtr()> second_half);
  ~CudaWork() override;

  bool isCompleted() override;  // true also if it failed
  bool isSuccess() const override;
  bool wait(std::chrono::milliseconds timeout) override;
  void synchronize() override;
  void blockCurrentStream() override { synchronize(); }
  std::vector<at::Tensor> result() override { return outputs_; }
  c10::intrusive_ptr<c10::ivalue::Future> getFuture() override;
  uint64_t getSequencenumber() const override { return watcher_.sequence_number; }

 private:
  EventPtr done();  // of the whole operation
  void throw_if_failed();
  void block_host(std::chrono::milliseconds timeout);
  at::Device device() const { return place_.aftermath.device(); }

  const OwnProcess process_;
  const std::vector<at::Tensor> outputs_;
  const std::chrono::milliseconds timeout_;  // of the operation
  std::mutex half_mutex_;                    // held while the second half waits; no other is taken before it
  EventPtr done_;                            // under half_mutex_
  std::function<EventPtr()> second_half_;    // under half_mutex_; null: there is none, or it is done
  const CudaPlace place_;
  const Watcher watcher_;
  std::vector<at::Tensor> held_;                    // under mutex_
  std::vector<at::Tensor> copies_;                  // those of held_ that callers do not know; under mutex_
  c10::intrusive_ptr<c10::ivalue::Future> future_;  // under mutex_
};

}  // namespace isthmus::torch_backend
