// The threads that complete the Futures of calls in two tiers and run their callbacks.
#pragma once

#include <condition_variable>
#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <set>
#include <utility>

namespace isthmus::torch_backend {

// Callbacks may make calls and wait for them. On the worker thread they would wait for themselves, so those of each
// Future have a thread of their own.
//
// Their calls keep the same order on all ranks: among callbacks of one depth (0: no callback made their call, 1: a
// callback of depth 0 made it, and so on), each begins to make calls only when those before it have ended.
class CallbackThreads : public std::enable_shared_from_this<CallbackThreads> {
 public:
  // Runs `completion`, which must not throw. Only the worker calls this, in the order of its calls. depth: the depth of
  // the callbacks that it runs. If this process can have no more threads, runs it on the calling thread.
  void run(int depth, std::function<void()> completion);
  // Waits until all completions have ended, but for the one that the calling thread runs.
  void join();

  // Returns the depth of the callbacks of calls that the calling thread makes.
  static int depth_of_calls();
  // In a callback, waits until the callbacks before it have ended. Called before each collective of any group.
  static void await_turn();

 private:
  using Turn = std::pair<int, uint64_t>;  // the depth and the number of a completion

  void end(const Turn& turn);

  static thread_local CallbackThreads* owner_here_;  // null: not in a callback
  static thread_local Turn turn_here_;

  std::mutex mutex_;               // guards the members below
  std::condition_variable ended_;  // notified when a completion has ended
  std::set<Turn> under_way_;       // those that have not ended
  uint64_t next_number_ = 0;
};

}  // namespace isthmus::torch_backend
