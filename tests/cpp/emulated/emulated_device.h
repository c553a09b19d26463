// Groups of many threads without a GPU: passes run on it as they do on CUDA, so that what they compute, where they wait
// and which memory they share is tested on any machine. Memory of a group begins as garbage, and has exactly the bytes
// that were asked for. There are two ways to run:
//
// In turns: every thread is a context of its own on one CPU thread. It runs until it waits for its group; the threads
// of a group run one after the other in random order, and the groups of a pass take turns at random, all of them alive
// at once. So an algorithm that depends on an order that no barrier gives comes out differently from seed to seed. A
// thread that leaves out a barrier, or waits in another call than the rest of its group, ends the program with a
// message.
//
// At once: every thread is a CPU thread. Slow, but ThreadSanitizer sees each access that no barrier separates.
#pragma once

#include <ucontext.h>

#include <algorithm>
#include <atomic>
#include <barrier>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <deque>
#include <functional>
#include <limits>
#include <memory>
#include <numeric>
#include <optional>
#include <random>
#include <thread>
#include <utility>
#include <vector>

#include "kernels/block/device.h"
#include "kernels/block/job.h"

namespace isthmus::test {

// What the threads of one group share.
struct EmulatedGroupState {
  std::function<void(const char*)> wait;  // for the other threads; all name the same call
  std::unique_ptr<std::byte[]> shared;
  std::vector<uint64_t> slots;      // one a thread, for collective calls
  std::vector<float> exchanged[2];  // one for 16 threads or a part of them, by turns
};

// A handle, as passes want it. See kernels/block/group.h for what the members mean.
class EmulatedGroup {
 public:
  EmulatedGroup(EmulatedGroupState* state, int64_t group_number, int64_t num_groups, int64_t thread, int64_t size)
      : state_(state), group_number_(group_number), num_groups_(num_groups), thread_(thread), size_(size) {}

  int64_t thread() const { return thread_; }
  int64_t size() const { return size_; }
  int64_t group_number() const { return group_number_; }
  int64_t num_groups() const { return num_groups_; }

  template <typename T>
  T& shared() const {
    return *reinterpret_cast<T*>(state_->shared.get());
  }

  void sync() { wait("sync"); }
  bool any(bool condition) { return sum_of("any", condition ? 1 : 0) != 0; }
  uint64_t sum(uint64_t value) { return sum_of("sum", value); }
  uint32_t exclusive_sum(uint32_t value, uint32_t& total) {
    post("exclusive_sum", value);
    total = static_cast<uint32_t>(sum_of_first(size_));
    const auto before = static_cast<uint32_t>(sum_of_first(thread_));
    wait("exclusive_sum");
    return before;
  }

  // One wait for each: the next exchange has other slots.
  template <int kDistance>
  float exchange(float value) {
    static_assert(kDistance < 16);
    return hand_over("exchange", value)[thread_ ^ kDistance];
  }
  bool any_in_step(bool condition) {
    const std::vector<float>& slots = hand_over("any_in_step", condition ? 1 : 0);
    return std::find(slots.begin(), slots.end(), 1.0F) != slots.end();
  }
  uint32_t ballot_in_step(bool condition) {
    const std::vector<float>& slots = hand_over("ballot_in_step", condition ? 1 : 0);
    uint32_t ballot = 0;
    for (int i = 0; i < 16; ++i) {
      ballot |= slots[thread_ / 16 * 16 + i] == 1 ? 1U << i : 0U;
    }
    return ballot;
  }
  float from_neighbour(float value, int neighbour) {
    return hand_over("from_neighbour", value)[thread_ / 16 * 16 + neighbour];
  }

  bool is_last(uint32_t& arrived) { return is_last_of(arrived, num_groups_); }
  bool is_last_of(uint32_t& arrived, int64_t num_groups) {
    wait("is_last");
    bool last = false;
    if (thread_ == 0) {
      std::atomic_ref count(arrived);
      last = count.fetch_add(1, std::memory_order_acq_rel) == num_groups - 1;
      if (last) {
        count.store(0, std::memory_order_relaxed);
      }
    }
    return sum_of("is_last", last ? 1 : 0) != 0;
  }
  template <typename Word>
  void publish(Word& word, Word value) {
    std::atomic_ref(word).store(value, std::memory_order_release);
  }

  template <typename Word>
  Word fetch_or(Word& word, Word operand) {
    return std::atomic_ref(word).fetch_or(operand, std::memory_order_relaxed);
  }
  template <typename Word>
  Word fetch_add(Word& word, Word operand) {
    return std::atomic_ref(word).fetch_add(operand, std::memory_order_relaxed);
  }
  uint32_t fetch_max(uint32_t& word, uint32_t operand) { return update(word, operand, std::less<>()); }
  uint32_t fetch_min(uint32_t& word, uint32_t operand) { return update(word, operand, std::greater<>()); }
  void apply_xor(uint32_t& word, uint32_t operand) {
    std::atomic_ref(word).fetch_xor(operand, std::memory_order_relaxed);
  }

 private:
  void wait(const char* what) { state_->wait(what); }

  template <typename Before>
  static uint32_t update(uint32_t& word, uint32_t operand, Before before) {
    std::atomic_ref shared(word);
    uint32_t value = shared.load(std::memory_order_relaxed);
    while (before(value, operand) && !shared.compare_exchange_weak(value, operand, std::memory_order_relaxed)) {
    }
    return value;
  }

  // The values of all threads: until the next call but one.
  const std::vector<float>& hand_over(const char* what, float value) {
    std::vector<float>& slots = state_->exchanged[num_exchanges_++ % 2];
    slots[thread_] = value;
    wait(what);
    return slots;
  }

  // Hands `value` to the other threads, which may read it until the next wait.
  void post(const char* what, uint64_t value) {
    state_->slots[thread_] = value;
    wait(what);
  }
  uint64_t sum_of_first(int64_t count) const {
    return std::accumulate(state_->slots.begin(), state_->slots.begin() + count, uint64_t{0});
  }
  uint64_t sum_of(const char* what, uint64_t value) {
    post(what, value);
    const uint64_t sum = sum_of_first(size_);
    wait(what);
    return sum;
  }

  EmulatedGroupState* state_;
  int64_t group_number_;
  int64_t num_groups_;
  int64_t thread_;
  int64_t size_;
  int64_t num_exchanges_ = 0;
};

// Refuses what a driver would refuse, for a kernel that declares as much shared memory itself as any has.
inline void require_shared_memory(int64_t max_shared_bytes, int64_t shared_bytes) {
  constexpr int64_t kFixedBytes = 192;
  const bool asks = kernels::must_ask_for_shared(kFixedBytes, shared_bytes);
  const int64_t given = asks ? kFixedBytes + max_shared_bytes : int64_t{48} * 1024;
  if (kFixedBytes + shared_bytes > given || given > kernels::kMostSharedBytes) {
    std::fprintf(stderr, "a kernel launch with %lld bytes of shared memory would be refused\n",
                 static_cast<long long>(shared_bytes));
    std::abort();
  }
}

using EmulatedPass = std::function<void(EmulatedGroup&)>;

inline std::vector<EmulatedGroupState> make_group_states(int64_t num_groups, int64_t num_threads,
                                                         int64_t shared_bytes) {
  std::vector<EmulatedGroupState> groups(num_groups);
  for (EmulatedGroupState& state : groups) {
    state.shared.reset(new std::byte[shared_bytes]);
    std::memset(state.shared.get(), 0xa5, shared_bytes);
    state.slots.resize(num_threads);
    for (std::vector<float>& slots : state.exchanged) {
      slots.assign((num_threads + 15) / 16 * 16, std::numeric_limits<float>::quiet_NaN());
    }
  }
  return groups;
}

// One pass, at once.
inline void run_at_once(const EmulatedPass& pass, int64_t num_groups, int64_t num_threads, int64_t shared_bytes) {
  std::vector<EmulatedGroupState> groups = make_group_states(num_groups, num_threads, shared_bytes);
  std::deque<std::barrier<>> barriers;
  std::vector<std::thread> threads;
  for (int64_t g = 0; g < num_groups; ++g) {
    auto& barrier = barriers.emplace_back(num_threads);
    groups[g].wait = [&barrier](const char*) { barrier.arrive_and_wait(); };
    for (int64_t t = 0; t < num_threads; ++t) {
      threads.emplace_back(
          [&pass, group = EmulatedGroup(&groups[g], g, num_groups, t, num_threads)]() mutable { pass(group); });
    }
  }
  for (std::thread& thread : threads) {
    thread.join();
  }
}

// One pass, in turns.
class EmulatedLaunch {
 public:
  EmulatedLaunch(const EmulatedPass& pass, int64_t num_groups, int64_t num_threads, int64_t shared_bytes,
                 std::mt19937& random)
      : pass_(pass),
        num_threads_(num_threads),
        random_(random),
        threads_(num_groups * num_threads),
        groups_(make_group_states(num_groups, num_threads, shared_bytes)) {
    for (int64_t g = 0; g < num_groups; ++g) {
      groups_[g].wait = [this](const char* what) { wait(what); };
      for (int64_t t = 0; t < num_threads; ++t) {
        start(threads_[g * num_threads + t], EmulatedGroup(&groups_[g], g, num_groups, t, num_threads));
      }
    }
  }

  void run() {
    std::vector<int64_t> alive(groups_.size());
    std::iota(alive.begin(), alive.end(), 0);
    while (!alive.empty()) {
      const size_t pick = random_() % alive.size();
      if (!run_group_to_barrier(alive[pick])) {
        alive.erase(alive.begin() + pick);
      }
    }
  }

 private:
  static constexpr size_t kStackBytes = 64 * 1024;

  using Place = void* [5];  // of __builtin_setjmp

  struct Thread {
    ucontext_t context;  // where it begins
    Place place;         // where it goes on
    std::unique_ptr<std::byte[]> stack;
    std::optional<EmulatedGroup> group;
    bool has_begun = false;
    const char* waits_in = "start";  // null: it has returned
  };

  // A function of its own: none may both set a place and jump.
  [[gnu::noinline, gnu::no_sanitize_address, noreturn]] static void jump(Place to) { __builtin_longjmp(to, 1); }

  // Called by the running thread.
  [[gnu::no_sanitize_address]] void wait(const char* what) {
    running_->waits_in = what;
    if (__builtin_setjmp(running_->place) == 0) {
      jump(scheduler_);
    }
  }

  // Until it waits, or returns. Jumps, as swapcontext() would ask the system for signals each time, which takes longer
  // than most threads run; and the compiler's, as AddressSanitizer asks it for a stack at each of the library's.
  [[gnu::no_sanitize_address]] void resume(Thread& thread) {
    running_ = &thread;
    if (__builtin_setjmp(scheduler_) != 0) {
      return;
    }
    if (std::exchange(thread.has_begun, true)) {
      jump(thread.place);
    }
    setcontext(&thread.context);
  }

  void start(Thread& thread, const EmulatedGroup& group) {
    thread.stack.reset(new std::byte[kStackBytes]);
    thread.group = group;
    getcontext(&thread.context);
    thread.context.uc_stack.ss_sp = thread.stack.get();
    thread.context.uc_stack.ss_size = kStackBytes;
    thread.context.uc_link = nullptr;
    const auto address = reinterpret_cast<uintptr_t>(this);
    makecontext(&thread.context, reinterpret_cast<void (*)()>(enter), 2, static_cast<unsigned>(address >> 32),
                static_cast<unsigned>(address));
  }

  [[gnu::no_sanitize_address]] static void enter(unsigned high, unsigned low) {
    auto* launch = reinterpret_cast<EmulatedLaunch*>(uintptr_t{high} << 32 | low);
    launch->pass_(*launch->running_->group);
    launch->running_->waits_in = nullptr;
    jump(launch->scheduler_);
  }

  // Returns whether the group is still alive.
  bool run_group_to_barrier(int64_t group) {
    std::vector<int64_t> order(num_threads_);
    std::iota(order.begin(), order.end(), group * num_threads_);
    std::shuffle(order.begin(), order.end(), random_);
    for (const int64_t thread : order) {
      resume(threads_[thread]);
    }
    const char* first = threads_[group * num_threads_].waits_in;
    for (const int64_t thread : order) {
      if (std::strcmp(name(threads_[thread].waits_in), name(first)) != 0) {
        std::fprintf(stderr, "threads of a group diverge: one waits in %s, another in %s\n", name(first),
                     name(threads_[thread].waits_in));
        std::abort();
      }
    }
    return first != nullptr;
  }

  static const char* name(const char* waits_in) { return waits_in == nullptr ? "nothing, it returned" : waits_in; }

  const EmulatedPass& pass_;
  int64_t num_threads_;
  std::mt19937& random_;
  std::vector<Thread> threads_;
  std::vector<EmulatedGroupState> groups_;
  Thread* running_ = nullptr;
  Place scheduler_ = {};
};

// Runs sequences of passes (kernels/tagc/run_passes.h), each on groups of at most `num_threads` and at most
// `max_groups`.
class EmulatedDevice {
 public:
  enum class Threads { kInTurns, kAtOnce };
  // How it cuts the work: results must not depend on it.
  struct Cut {
    int64_t num_threads = 16;
    int64_t max_groups = 1;
    Threads threads = Threads::kInTurns;
  };

  EmulatedDevice(Cut cut, uint32_t seed) : EmulatedDevice(cut.num_threads, cut.max_groups, seed, cut.threads) {}
  EmulatedDevice(int64_t num_threads, int64_t max_groups, uint32_t seed, Threads threads = Threads::kInTurns)
      : num_threads_(num_threads), max_groups_(max_groups), threads_(threads), random_(seed) {}

  void clear(void* memory, int64_t bytes) { std::memset(memory, 0, bytes); }

  template <typename Pass>
  void run(const Pass& pass, int64_t max_groups, int64_t shared_bytes = kernels::most_shared_bytes<Pass>()) {
    require_shared_memory(kernels::most_shared_bytes<Pass>(), shared_bytes);
    const EmulatedPass body = [&](EmulatedGroup& group) { pass(group); };
    const int64_t num_groups = std::min(max_groups, max_groups_);
    const int64_t num_threads = std::min<int64_t>(num_threads_, kernels::threads_of<Pass>());
    if (threads_ == Threads::kAtOnce) {
      run_at_once(body, num_groups, num_threads, shared_bytes);
    } else {
      EmulatedLaunch(body, num_groups, num_threads, shared_bytes, random_).run();
    }
  }

 private:
  int64_t num_threads_;
  int64_t max_groups_;
  Threads threads_;
  std::mt19937 random_;
};

}  // namespace isthmus::test
