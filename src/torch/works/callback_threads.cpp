#include "torch/works/callback_threads.h"

#include <c10/util/thread_name.h>

#include <system_error>

namespace isthmus::torch_backend {

thread_local const CallbackThreads::Completion* CallbackThreads::running_here_ = nullptr;
thread_local CallbackThreads* CallbackThreads::owner_here_ = nullptr;

void CallbackThreads::run(int depth, std::function<void()> completion) {
  std::unique_lock lock(mutex_);
  under_way_.emplace(depth, next_number_);
  waiting_.push_back({depth, next_number_++, std::move(completion)});
  if (idle_ >= waiting_.size()) {
    wakes_.notify_one();
    return;
  }
  try {
    threads_.emplace_back([this] { run_thread(); });
  } catch (const std::system_error&) {  // the process can have no more threads
    const Completion last = std::move(waiting_.back());
    waiting_.pop_back();
    lock.unlock();
    last.run();
    end(last);
  }
}

void CallbackThreads::run_thread() {
  c10::setThreadName("isthmus_future");
  owner_here_ = this;
  std::unique_lock lock(mutex_);
  while (true) {
    ++idle_;
    wakes_.wait(lock, [this] { return stopping_ || !waiting_.empty(); });
    --idle_;
    if (waiting_.empty()) {
      return;
    }
    {
      const Completion completion = std::move(waiting_.front());
      waiting_.pop_front();
      lock.unlock();
      running_here_ = &completion;
      completion.run();
      running_here_ = nullptr;
      end(completion);
    }  // frees the tensors, without the lock
    lock.lock();
  }
}

void CallbackThreads::end(const Completion& completion) {
  const std::lock_guard lock(mutex_);
  under_way_.erase({completion.depth, completion.number});
  turns_.notify_all();
}

void CallbackThreads::join() {
  {
    const std::lock_guard lock(mutex_);
    stopping_ = true;
    wakes_.notify_all();
  }
  for (std::thread& thread : threads_) {
    thread.join();
  }
  threads_.clear();
}

int CallbackThreads::depth_of_calls() { return running_here_ == nullptr ? 0 : running_here_->depth + 1; }

void CallbackThreads::await_turn() {
  if (running_here_ == nullptr) {
    return;
  }
  CallbackThreads& owner = *owner_here_;
  const auto own = std::pair(running_here_->depth, running_here_->number);
  std::unique_lock lock(owner.mutex_);
  owner.turns_.wait(lock, [&] { return *owner.under_way_.lower_bound({own.first, 0}) == own; });
}

}  // namespace isthmus::torch_backend
