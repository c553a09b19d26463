#include "torch/works/work.h"

#include <ATen/core/ivalue.h>
#include <ATen/core/jit_type.h>
#include <c10/util/ScopeExit.h>

#include <algorithm>
#include <chrono>
#include <iterator>
#include <string_view>
#include <typeinfo>
#include <utility>

#include "torch/base/interpreter.h"

// Where Works override wait() or synchronize(), they call Work::synchronize(): it takes them out of torch's table of
// Works that are under way, in which allow_inflight_collective_as_graph_input_ctx() puts what a call returns.

namespace isthmus::torch_backend {
namespace {

c10::intrusive_ptr<c10::ivalue::Future> tensor_list_future() {
  return c10::make_intrusive<c10::ivalue::Future>(c10::ListType::create(c10::TensorType::get()));
}

// Returns whether a rank or the network is at fault, rather than the caller's arguments ("Invalid scalar type"). Torch
// brings no headers of Gloo, whose errors their types tell apart; it raises its own timeouts as errors of no other
// type.
bool is_network_failure(const std::exception& error) {
  const std::string_view type = typeid(error).name();
  if (type.starts_with("N4gloo") || dynamic_cast<const c10::DistError*>(&error) != nullptr) {
    return !type.starts_with("N4gloo") || type == "N4gloo11IoExceptionE";
  }
  constexpr std::string_view kSigns[] = {"imed out", "imeout", "onnection", "abort"};
  const std::string_view text = error.what();
  return std::any_of(std::begin(kSigns), std::end(kSigns),
                     [&](std::string_view sign) { return text.find(sign) != std::string_view::npos; });
}

// Waits for `work` by wait(timeout), which throws once the timeout is over, in parts, so that handlers run between
// them.
template <typename Wait>
bool wait_with_signals(c10d::Work& work, std::chrono::milliseconds timeout, const Wait& wait) {
  using Clock = std::chrono::steady_clock;
  constexpr std::chrono::milliseconds kLongestPart{500};
  if (!runs_signal_handlers()) {
    return wait(timeout);
  }
  const auto begin = Clock::now();
  while (!work.isCompleted()) {
    auto part = kLongestPart;
    if (timeout != kNoTimeout) {
      const auto waited = std::chrono::duration_cast<std::chrono::milliseconds>(Clock::now() - begin);
      part = std::clamp(timeout - waited, std::chrono::milliseconds(1), kLongestPart);
    }
    const auto end = Clock::now() + part;
    try {
      return wait(part);
    } catch (const std::exception&) {
      const bool is_last = timeout != kNoTimeout && Clock::now() - begin >= timeout;
      if (!work.isCompleted() && (is_last || Clock::now() < end)) {
        throw;
      }
    }
    run_signal_handlers();
  }
  return wait(kNoTimeout);
}

}  // namespace

WorkerWork::WorkerWork(int rank, c10d::OpType type, const char* profiling_title, const std::vector<at::Tensor>& inputs,
                       std::vector<at::Tensor> outputs)
    : Work(rank, type, profiling_title, inputs), outputs_(std::move(outputs)) {}

bool WorkerWork::wait(std::chrono::milliseconds timeout) {
  process_.require_this();
  const std::function<void()> wait_ends = wait_begins_ ? wait_begins_() : nullptr;
  const bool is_done =
      wait_with_signals(*this, timeout, [this](std::chrono::milliseconds part) { return Work::wait(part); });
  if (wait_ends) {
    wait_ends();
  }
  return is_done;
}

c10::intrusive_ptr<c10::ivalue::Future> WorkerWork::getFuture() {
  process_.require_this();
  const std::lock_guard lock(mutex_);
  if (!future_) {
    future_ = tensor_list_future();
    if (is_over_) {
      complete_future(*future_, error_);  // the Future has no callbacks yet
    }
  }
  return future_;
}

void WorkerWork::run(const std::function<void()>& operation) {
  std::exception_ptr error;
  try {
    operation();
  } catch (...) {
    error = std::current_exception();
  }
  end(std::move(error));
}

void WorkerWork::end(std::exception_ptr error) {
  std::unique_lock lock(mutex_);
  is_over_ = true;
  error_ = error;
  const auto future = future_;
  lock.unlock();
  if (!future) {
    finish(std::move(error));
    return;
  }
  auto completion = [self = c10::intrusive_ptr<WorkerWork>::reclaim_copy(this), future, error = std::move(error)] {
    self->complete_future(*future, error);
    self->finish(error);
  };
  callback_threads_ ? callback_threads_->run(depth_, std::move(completion)) : completion();
}

void WorkerWork::complete_future(c10::ivalue::Future& future, const std::exception_ptr& error) const {
  error ? future.setError(error) : future.markCompleted(c10::IValue(outputs_));
}

CombinedWork::CombinedWork(int rank, c10d::OpType type, std::vector<WorkPtr> works, c10::IValue outputs)
    : Work(rank, type), works_(std::move(works)), outputs_(std::move(outputs)) {}

bool CombinedWork::isCompleted() {
  return waited_ || std::all_of(works_.begin(), works_.end(), [](const auto& work) { return work->isCompleted(); });
}

bool CombinedWork::isSuccess() const {
  return std::all_of(works_.begin(), works_.end(), [](const auto& work) { return work->isSuccess(); });
}

std::exception_ptr CombinedWork::exception() const {
  for (const auto& work : works_) {
    if (auto error = work->exception()) {
      return error;
    }
  }
  return nullptr;
}

bool CombinedWork::wait(std::chrono::milliseconds timeout) {
  const auto deadline = std::chrono::steady_clock::now() + timeout;
  bool all_done = true;
  for (const auto& work : works_) {
    auto left = timeout;
    if (timeout != kNoTimeout) {
      left = std::chrono::duration_cast<std::chrono::milliseconds>(deadline - std::chrono::steady_clock::now());
      left = std::max(left, std::chrono::milliseconds(1));
    }
    all_done = work->wait(left) && all_done;
  }
  waited_ = true;
  Work::synchronize();
  return all_done;
}

void CombinedWork::synchronize() {
  Work::synchronize();
  for (const auto& work : works_) {
    work->synchronize();
  }
}

std::vector<at::Tensor> CombinedWork::result() {
  if (!outputs_.isNone()) {
    TORCH_CHECK(outputs_.isTensorList(), "isthmus: the result is lists of tensors: the Work's Future gives it");
    return outputs_.toTensorVector();
  }
  std::vector<at::Tensor> outputs;
  for (const auto& work : works_) {
    const auto part = work->result();
    outputs.insert(outputs.end(), part.begin(), part.end());
  }
  return outputs;
}

c10::intrusive_ptr<c10::ivalue::Future> CombinedWork::getFuture() {
  using FuturePtr = c10::intrusive_ptr<c10::ivalue::Future>;
  c10::List<FuturePtr> futures(c10::FutureType::create(c10::ListType::create(c10::TensorType::get())));
  for (const auto& work : works_) {
    futures.push_back(work->getFuture());
  }
  const auto self = c10::intrusive_ptr<CombinedWork>::reclaim_copy(this);
  return c10::collectAll(futures)->then(
      [self](c10::ivalue::Future& all) {
        for (const c10::IValue& future : all.value().toListRef()) {
          future.toFuture()->value();  // throws if the work failed
        }
        return self->outputs_.isNone() ? c10::IValue(self->result()) : self->outputs_;
      },
      outputs_.isNone() ? c10::ListType::create(c10::TensorType::get()) : outputs_.type());
}

WatchedWork::WatchedWork(WorkPtr work, Watcher watcher)
    : Work(-1, work->retrieveOpType()), work_(std::move(work)), watcher_(std::move(watcher)) {}

void WatchedWork::synchronize() {
  Work::synchronize();
  work_->synchronize();
}

bool WatchedWork::wait(std::chrono::milliseconds timeout) {
  Work::synchronize();
  const auto owner = watcher_.owner.lock();
  if (!owner) {
    return work_->wait(timeout);
  }
  watcher_.faults->wait_begins();
  const auto ends = c10::make_scope_exit([this] { watcher_.faults->wait_ends(); });
  const auto wait = [this](std::chrono::milliseconds part) { return work_->wait(part); };
  try {
    // Gloo closes its connections where a wait for a message ends early.
    return c10d::isP2POp(opType_) ? wait(timeout) : wait_with_signals(*work_, timeout, wait);
  } catch (const pybind11::error_already_set&) {  // by a signal's handler
    throw;
  } catch (const std::exception& error) {
    const bool patience_ended = timeout != kNoTimeout && !work_->isCompleted();  // the operation goes on
    if (patience_ended || !is_network_failure(error)) {
      throw;
    }
    std::rethrow_exception(watcher_.faults->explain(opType_, watcher_.sequence_number, error.what()));
  }
}

c10::intrusive_ptr<c10::ivalue::Future> WatchedWork::getFuture() {
  auto future = work_->getFuture();
  const auto owner = watcher_.owner.lock();
  if (!owner) {
    return future;
  }
  watcher_.faults->wait_begins();
  const auto watched = [type = opType_, watcher = watcher_](c10::ivalue::Future& done) {
    const auto alive = watcher.owner.lock();
    const auto ends = c10::make_scope_exit([&] {
      if (alive) {
        watcher.faults->wait_ends();
      }
    });
    try {
      return done.value();
    } catch (const std::exception& error) {
      if (!alive || !is_network_failure(error)) {
        throw;
      }
      std::rethrow_exception(watcher.faults->explain(type, watcher.sequence_number, error.what()));
    }
  };
  return future->then(watched, future->elementType());
}

WorkPtr followed_by(const WorkPtr& work, std::vector<at::Tensor> outputs, std::function<void()> then) {
  auto followed = c10::make_intrusive<WorkerWork>(-1, work->retrieveOpType(), nullptr, std::vector<at::Tensor>{},
                                                  std::move(outputs));
  work->getFuture()->addCallback([followed, then = std::move(then)](c10::ivalue::Future& done) {
    followed->run([&] {
      done.value();  // throws if it failed
      then();
    });
  });
  return followed;
}

}  // namespace isthmus::torch_backend
