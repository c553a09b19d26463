// Groups of many threads without a GPU: passes run on it as they do on CUDA, so that what they compute, where they wait
// and which memory they share is tested on any machine.
//
// Every thread is a context of its own on one CPU thread. It runs until it waits for its group; the threads of a group
// run one after the other in random order, and the groups of a pass take turns at random, all of them alive at once. So
// an algorithm that depends on an order that no barrier gives comes out differently from seed to seed. Memory of a
// group begins as garbage, and has exactly the bytes that were asked for. A thread that leaves out a barrier, or waits
// in another call than the rest of its group, ends the test program with a message.
#pragma once

#include <ucontext.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <memory>
#include <numeric>
#include <random>
#include <utility>
#include <vector>

namespace isthmus::test {

class EmulatedLaunch;

// What the threads of one group share.
struct EmulatedGroupState {
  std::unique_ptr<std::byte[]> shared;
  std::vector<uint64_t> slots;  // one a thread, for collective calls
};

// A handle, as passes want it. See kernels/group.h for what the members mean.
class EmulatedGroup {
 public:
  EmulatedGroup(EmulatedLaunch* launch, EmulatedGroupState* state, int64_t group_number, int64_t num_groups,
                int64_t thread, int64_t size)
      : launch_(launch),
        state_(state),
        group_number_(group_number),
        num_groups_(num_groups),
        thread_(thread),
        size_(size) {}

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

  template <typename Word>
  Word fetch_or(Word& word, Word operand) {
    return update(word, word | operand);
  }
  template <typename Word>
  Word fetch_add(Word& word, Word operand) {
    return update(word, word + operand);
  }
  uint32_t fetch_max(uint32_t& word, uint32_t operand) { return update(word, std::max(word, operand)); }
  uint32_t fetch_min(uint32_t& word, uint32_t operand) { return update(word, std::min(word, operand)); }
  void apply_xor(uint32_t& word, uint32_t operand) { update(word, word ^ operand); }

 private:
  void wait(const char* what);

  template <typename Word>
  static Word update(Word& word, Word value) {
    return std::exchange(word, value);
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

  EmulatedLaunch* launch_;
  EmulatedGroupState* state_;
  int64_t group_number_;
  int64_t num_groups_;
  int64_t thread_;
  int64_t size_;
};

// One pass on its groups.
class EmulatedLaunch {
 public:
  using Body = std::function<void(EmulatedGroup&)>;

  EmulatedLaunch(Body body, int64_t num_groups, int64_t num_threads, int64_t shared_bytes, std::mt19937& random)
      : body_(std::move(body)), num_threads_(num_threads), random_(random), threads_(num_groups * num_threads) {
    for (int64_t g = 0; g < num_groups; ++g) {
      EmulatedGroupState& state = groups_.emplace_back();
      state.shared.reset(new std::byte[shared_bytes]);
      std::memset(state.shared.get(), 0xa5, shared_bytes);
      state.slots.resize(num_threads);
    }
    for (int64_t g = 0; g < num_groups; ++g) {
      for (int64_t t = 0; t < num_threads; ++t) {
        start(threads_[g * num_threads + t], EmulatedGroup(this, &groups_[g], g, num_groups, t, num_threads));
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

  // Called by the running thread.
  void wait(const char* what) {
    running_->waits_in = what;
    swapcontext(&running_->context, &scheduler_);
  }

 private:
  static constexpr size_t kStackBytes = 64 * 1024;

  struct Thread {
    ucontext_t context;
    std::unique_ptr<std::byte[]> stack;
    std::unique_ptr<EmulatedGroup> group;
    const char* waits_in = "start";  // null: it has returned
  };

  void start(Thread& thread, const EmulatedGroup& group) {
    thread.stack.reset(new std::byte[kStackBytes]);
    thread.group = std::make_unique<EmulatedGroup>(group);
    getcontext(&thread.context);
    thread.context.uc_stack.ss_sp = thread.stack.get();
    thread.context.uc_stack.ss_size = kStackBytes;
    thread.context.uc_link = &scheduler_;
    const auto address = reinterpret_cast<uintptr_t>(this);
    makecontext(&thread.context, reinterpret_cast<void (*)()>(enter), 2, static_cast<unsigned>(address >> 32),
                static_cast<unsigned>(address));
  }

  static void enter(unsigned high, unsigned low) {
    auto* launch = reinterpret_cast<EmulatedLaunch*>(uintptr_t{high} << 32 | low);
    launch->body_(*launch->running_->group);
    launch->running_->waits_in = nullptr;
  }

  // Returns whether the group is still alive.
  bool run_group_to_barrier(int64_t group) {
    std::vector<int64_t> order(num_threads_);
    std::iota(order.begin(), order.end(), group * num_threads_);
    std::shuffle(order.begin(), order.end(), random_);
    for (const int64_t thread : order) {
      running_ = &threads_[thread];
      swapcontext(&scheduler_, &running_->context);
    }
    const char* first = threads_[group * num_threads_].waits_in;
    for (const int64_t thread : order) {
      if (threads_[thread].waits_in != first) {  // literals: equal names have equal addresses here
        std::fprintf(stderr, "threads of a group diverge: one waits in %s, another in %s\n", name(first),
                     name(threads_[thread].waits_in));
        std::abort();
      }
    }
    return first != nullptr;
  }

  static const char* name(const char* waits_in) { return waits_in == nullptr ? "nothing, it returned" : waits_in; }

  Body body_;
  int64_t num_threads_;
  std::mt19937& random_;
  std::vector<Thread> threads_;
  std::vector<EmulatedGroupState> groups_;
  Thread* running_ = nullptr;
  ucontext_t scheduler_ = {};
};

inline void EmulatedGroup::wait(const char* what) { launch_->wait(what); }

// Runs sequences of passes (kernels/tagc_sequence.h), each on groups of at most `num_threads` and at most `max_groups`.
class EmulatedDevice {
 public:
  EmulatedDevice(int64_t num_threads, int64_t max_groups, uint32_t seed)
      : num_threads_(num_threads), max_groups_(max_groups), random_(seed) {}

  void clear(void* memory, int64_t bytes) { std::memset(memory, 0, bytes); }

  template <typename Pass>
  void run(const Pass& pass, int64_t max_groups, int64_t shared_bytes) {
    EmulatedLaunch launch([&](EmulatedGroup& group) { pass(group); }, std::min(max_groups, max_groups_),
                          std::min<int64_t>(num_threads_, Pass::kThreads), shared_bytes, random_);
    launch.run();
    ++num_passes_;
  }

  int num_passes() const { return num_passes_; }

 private:
  int64_t num_threads_;
  int64_t max_groups_;
  std::mt19937 random_;
  int num_passes_ = 0;
};

}  // namespace isthmus::test
