// The threads that complete the Futures of calls in two tiers and run their callbacks.
#pragma once

#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <functional>
#include <mutex>
#include <set>
#include <thread>
#include <utility>
#include <vector>

namespace isthmus::torch_backend {

// Callbacks may make calls and wait for them. On the worker thread they would wait for themselves, so each runs on an
// idle thread, or on a new one if all are busy.
//
// Their calls keep the same order on all ranks: among callbacks of one depth (0: no callback made their call, 1: a
// callback of depth 0 made it, and so on), each begins to make calls only when those before it have ended.
class CallbackThreads {
 public:
  // Runs `completion`, which must not throw. Only the worker calls this, in the order of its calls. depth: the depth of
  // the callbacks that it runs. If this process can have no more threads, runs it on the calling thread.
  void run(int depth, std::function<void()> completion);
  // Waits until all completions have ended. Called once, after the last run().
  void join();

  // Returns the depth of the callbacks of calls that the calling thread makes.
  static int depth_of_calls();
  // In a callback, waits until the callbacks before it have ended. Called before each collective of any group.
  static void await_turn();

 private:
  struct Completion {
    int depth = 0;
    uint64_t number = 0;
    std::function<void()> run;
  };

  void run_thread();
  void end(const Completion& completion);
  static thread_local const Completion* running_here_;
  static thread_local CallbackThreads* owner_here_;

  std::mutex mutex_;               // guards the members below
  std::condition_variable wakes_;  // notified on a new completion and on stopping_
  std::condition_variable turns_;  // notified when a completion has ended
  std::deque<Completion> waiting_;
  std::set<std::pair<int, uint64_t>> under_way_;  // depth and number of completions that have not ended
  uint64_t next_number_ = 0;
  size_t idle_ = 0;  // number of idle threads
  bool stopping_ = false;

  std::vector<std::thread> threads_;  // the worker alone uses it, then the caller of join()
};

}  // namespace isthmus::torch_backend
