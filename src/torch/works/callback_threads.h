// The threads on which Futures of calls in two tiers complete, and with them what their callbacks do.
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

// Callbacks may make calls and wait for them. On the worker they would wait for themselves, so each runs on a thread on
// which nothing else has to run: a new one if all others are busy.
//
// Their calls keep one order on all ranks: of callbacks of one depth (0: of calls that no callback made, 1: of calls
// that callbacks of depth 0 made, and so on) the next begins to make calls when those before it have ended.
class CallbackThreads {
 public:
  // Runs `completion`, which must not throw. Called by the worker alone, in the order of its calls. depth: of the
  // callbacks that it runs. Where this process may have no more threads it runs here and now.
  void run(int depth, std::function<void()> completion);
  // Waits until all have ended. Once, after the last run().
  void join();

  // The depth of callbacks of a call that the calling thread makes.
  static int depth_of_calls();
  // Waits, in a callback, until those before it have ended. Called before each collective of any group.
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

  std::mutex mutex_;               // guards what follows
  std::condition_variable wakes_;  // a completion came, or stopping_
  std::condition_variable turns_;  // one has ended
  std::deque<Completion> waiting_;
  std::set<std::pair<int, uint64_t>> under_way_;  // depth and number of those that have not ended
  uint64_t next_number_ = 0;
  size_t idle_ = 0;  // threads
  bool stopping_ = false;

  std::vector<std::thread> threads_;  // the worker's, then the caller's of join()
};

}  // namespace isthmus::torch_backend
