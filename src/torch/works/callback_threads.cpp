#include "torch/works/callback_threads.h"

#include <c10/util/thread_name.h>

#include <system_error>
#include <thread>

namespace isthmus::torch_backend {

thread_local CallbackThreads* CallbackThreads::owner_here_ = nullptr;
thread_local CallbackThreads::Turn CallbackThreads::turn_here_;

void CallbackThreads::run(int depth, std::function<void()> completion) {
  std::unique_lock lock(mutex_);
  const Turn turn{depth, next_number_++};
  under_way_.insert(turn);
  lock.unlock();
  const auto owned = std::make_shared<std::function<void()>>(std::move(completion));
  const auto run_and_end = [self = shared_from_this(), owned, turn] {
    (*owned)();
    *owned = nullptr;  // frees the tensors
    self->end(turn);
  };
  try {
    std::thread([self = this, turn, run_and_end] {
      c10::setThreadName("isthmus_future");
      owner_here_ = self;
      turn_here_ = turn;
      run_and_end();
    }).detach();
  } catch (const std::system_error&) {  // the process can have no more threads
    run_and_end();
  }
}

void CallbackThreads::end(const Turn& turn) {
  const std::lock_guard lock(mutex_);
  under_way_.erase(turn);
  ended_.notify_all();
}

void CallbackThreads::join() {
  const size_t own = owner_here_ == this ? 1 : 0;
  std::unique_lock lock(mutex_);
  ended_.wait(lock, [&] { return under_way_.size() == own; });
}

int CallbackThreads::depth_of_calls() { return owner_here_ == nullptr ? 0 : turn_here_.first + 1; }

void CallbackThreads::await_turn() {
  if (owner_here_ != nullptr) {
    std::unique_lock lock(owner_here_->mutex_);
    owner_here_->ended_.wait(lock, [] {
      return *owner_here_->under_way_.lower_bound({turn_here_.first, 0}) == turn_here_;
    });
  }
}

}  // namespace isthmus::torch_backend
