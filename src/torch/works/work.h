// The Works that the backend returns for operations it runs itself.
#pragma once

#include <atomic>
#include <exception>
#include <functional>
#include <memory>
#include <torch/csrc/distributed/c10d/Work.hpp>
#include <utility>
#include <vector>

#include "torch/base/group.h"
#include "torch/faults/fault_watch.h"
#include "torch/works/callback_threads.h"

namespace isthmus::torch_backend {

using WorkPtr = c10::intrusive_ptr<c10d::Work>;

// One operation that the worker thread runs. The caller uses wait(timeout), isCompleted, exception, result and
// getFuture; a forked child has no worker and must not wait. The worker calls run() or fail(), once. The Future
// completes first, so its callbacks have run when waiters go on. They run on a thread that may wait for other calls.
class WorkerWork final : public c10d::Work {
 public:
  // profiling_title: shown by the profiler from construction to completion.
  WorkerWork(int rank, c10d::OpType type, const char* profiling_title, const std::vector<at::Tensor>& inputs,
             std::vector<at::Tensor> outputs);

  bool wait(std::chrono::milliseconds timeout) override;
  std::vector<at::Tensor> result() override { return outputs_; }
  c10::intrusive_ptr<c10::ivalue::Future> getFuture() override;
  uint64_t getSequencenumber() const override { return sequence_number_; }

  void set_sequence_number(uint64_t number) { sequence_number_ = number; }
  // Sets a function that is called when a wait() begins; what it returns is called when that ends. Called before the
  // Work is handed out.
  void tell_waits(std::function<std::function<void()>()> listener) { wait_begins_ = std::move(listener); }
  // Completes the Future on these threads, not on the worker. Called before the Work is handed out.
  void complete_on(std::shared_ptr<CallbackThreads> threads) { callback_threads_ = std::move(threads); }
  // Completes it with what comes of `operation`.
  void run(const std::function<void()>& operation);
  void fail(std::exception_ptr error) { end(std::move(error)); }

 private:
  void end(std::exception_ptr error);
  void complete_future(c10::ivalue::Future& future, const std::exception_ptr& error) const;

  const OwnProcess process_;
  const int depth_ = CallbackThreads::depth_of_calls();
  std::vector<at::Tensor> outputs_;
  uint64_t sequence_number_ = 0;
  std::function<std::function<void()>()> wait_begins_;
  std::shared_ptr<CallbackThreads> callback_threads_;
  c10::intrusive_ptr<c10::ivalue::Future> future_;  // under mutex_; null until somebody asks for it
  bool is_over_ = false;                            // under mutex_
  std::exception_ptr error_;                        // under mutex_
};

// Several operations as one, which is done when all are.
class CombinedWork final : public c10d::Work {
 public:
  // outputs: the Future's value, either tensors, which result() also returns, or lists of tensors, which it does not.
  // If none are given, the value is the works' results, one after the other.
  CombinedWork(int rank, c10d::OpType type, std::vector<WorkPtr> works, c10::IValue outputs = {});

  bool isCompleted() override;
  bool isSuccess() const override;
  std::exception_ptr exception() const override;
  bool wait(std::chrono::milliseconds timeout) override;
  void synchronize() override;
  std::vector<at::Tensor> result() override;
  c10::intrusive_ptr<c10::ivalue::Future> getFuture() override;

 private:
  std::vector<WorkPtr> works_;
  c10::IValue outputs_;
  std::atomic<bool> waited_{false};  // some of Gloo's Works never say that they have completed
};

// A Work of the world backend whose failure names the ranks that are missing.
class WatchedWork final : public c10d::Work {
 public:
  WatchedWork(WorkPtr work, Watcher watcher);

  bool isCompleted() override { return work_->isCompleted(); }
  bool isSuccess() const override { return work_->isSuccess(); }
  std::exception_ptr exception() const override { return work_->exception(); }
  int sourceRank() const override { return work_->sourceRank(); }
  std::vector<at::Tensor> result() override { return work_->result(); }
  void synchronize() override;
  void blockCurrentStream() override { work_->blockCurrentStream(); }
  bool wait(std::chrono::milliseconds timeout) override;
  void abort() override { work_->abort(); }
  float getDuration() const override { return work_->getDuration(); }
  uint64_t getSequencenumber() const override { return watcher_.sequence_number; }
  c10::intrusive_ptr<c10::ivalue::Future> getFuture() override;
  c10::intrusive_ptr<c10::ivalue::Future> getFutureResult() override { return work_->getFutureResult(); }

 private:
  const WorkPtr work_;
  const Watcher watcher_;
};

// Returns a Work that runs `then` once `work` has succeeded, before waiters go on. It needs a backend whose Works have
// a Future. outputs: the value of result() and of the Future.
WorkPtr followed_by(const WorkPtr& work, std::vector<at::Tensor> outputs, std::function<void()> then);

}  // namespace isthmus::torch_backend
