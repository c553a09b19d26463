// A stream as a thread, and places in streams to wait for.
#pragma once

#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <random>
#include <thread>
#include <utility>

namespace isthmus::test {

// Passed once. Thread-safe.
class Mark {
 public:
  using Clock = std::chrono::steady_clock;

  void set() {
    const std::lock_guard lock(mutex_);
    time_ = Clock::now();
    passed_.notify_all();
  }
  void wait() {
    std::unique_lock lock(mutex_);
    passed_.wait(lock, [this] { return time_.has_value(); });
  }
  // Whether it was passed by then.
  bool wait_for(Clock::duration patience) {
    std::unique_lock lock(mutex_);
    return passed_.wait_for(lock, patience, [this] { return time_.has_value(); });
  }
  std::optional<Clock::time_point> time() const {
    const std::lock_guard lock(mutex_);
    return time_;
  }

 private:
  mutable std::mutex mutex_;
  std::condition_variable passed_;
  std::optional<Clock::time_point> time_;
};

// Runs work in the order in which it was pushed, one after another, in a thread of its own, with pauses of random
// length between.
class EmulatedStream {
 public:
  using Work = std::function<void()>;

  explicit EmulatedStream(uint32_t seed) : random_(seed) {}
  // Runs what was pushed.
  ~EmulatedStream() {
    if (thread_.joinable()) {
      push(nullptr);
      thread_.join();
    }
  }
  EmulatedStream(const EmulatedStream&) = delete;
  EmulatedStream& operator=(const EmulatedStream&) = delete;

  void push(Work work) {
    const std::lock_guard lock(mutex_);
    if (!thread_.joinable()) {
      thread_ = std::thread([this] { run(); });
    }
    queue_.push_back(std::move(work));
    pushed_.notify_one();
  }

  // The place behind all that was pushed.
  std::shared_ptr<Mark> push_mark() {
    auto mark = std::make_shared<Mark>();
    push([mark] { mark->set(); });
    return mark;
  }
  void push_wait(const std::shared_ptr<Mark>& mark) {
    push([mark] { mark->wait(); });
  }

  // A pause of this length before each piece of work that is pushed from now on.
  void slow_down(std::chrono::microseconds pause) {
    push([this, pause] { pause_ = pause; });
  }

 private:
  void run() {
    while (const Work work = pop()) {
      if (const std::chrono::microseconds pause = next_pause(); pause.count() > 0) {
        std::this_thread::sleep_for(pause);
      }
      work();
    }
  }

  Work pop() {
    std::unique_lock lock(mutex_);
    pushed_.wait(lock, [this] { return !queue_.empty(); });
    Work work = std::move(queue_.front());
    queue_.pop_front();
    return work;
  }

  std::chrono::microseconds next_pause() {
    constexpr uint32_t kOneIn = 8;
    constexpr uint32_t kLongestUs = 100;
    if (pause_.count() > 0) {
      return pause_;
    }
    return std::chrono::microseconds(random_() % kOneIn == 0 ? random_() % kLongestUs : 0);
  }

  // Used by the thread alone.
  std::mt19937 random_;
  std::chrono::microseconds pause_{0};

  std::mutex mutex_;  // guards what follows
  std::condition_variable pushed_;
  std::deque<Work> queue_;
  std::thread thread_;
};

}  // namespace isthmus::test
