// Passes on one group of one thread, which never waits: for whoever wants what they compute, and nothing of how many
// threads share it (emulated_device.h).
#pragma once

#include <algorithm>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <memory>
#include <utility>

#include "kernels/block/group_lanes.h"
#include "kernels/block/lanes16.h"

namespace isthmus::test {

// See kernels/block/group.h for what the members mean.
class OneThread {
 public:
  explicit OneThread(std::byte* shared_memory) : shared_(shared_memory) {}

  static constexpr int64_t thread() { return 0; }
  static constexpr int64_t size() { return 1; }
  static constexpr int64_t group_number() { return 0; }
  static constexpr int64_t num_groups() { return 1; }
  template <typename T>
  T& shared() const {
    return *reinterpret_cast<T*>(shared_);
  }

  static void sync() {}
  static bool any(bool condition) { return condition; }
  static uint64_t sum(uint64_t value) { return value; }
  static uint32_t exclusive_sum(uint32_t value, uint32_t& total) {
    total = value;
    return 0;
  }

  static bool is_last(uint32_t& arrived) { return is_last_of(arrived, 1); }
  static bool is_last_of(uint32_t& arrived, int64_t num_groups) {
    const bool last = ++arrived == static_cast<uint32_t>(num_groups);
    arrived = last ? 0 : arrived;
    return last;
  }
  template <typename Word>
  static void publish(Word& word, Word value) {
    std::atomic_ref(word).store(value, std::memory_order_release);
  }

  template <typename Word>
  static Word fetch_or(Word& word, Word operand) {
    return std::exchange(word, word | operand);
  }
  // Several streams may count in the same word.
  template <typename Word>
  static Word fetch_add(Word& word, Word operand) {
    return std::atomic_ref(word).fetch_add(operand, std::memory_order_relaxed);
  }
  static uint32_t fetch_max(uint32_t& word, uint32_t operand) { return std::exchange(word, std::max(word, operand)); }
  static uint32_t fetch_min(uint32_t& word, uint32_t operand) { return std::exchange(word, std::min(word, operand)); }
  template <typename Word>
  static void apply_xor(Word& word, Word operand) {
    word ^= operand;
  }

 private:
  std::byte* shared_;
};

// See kernels/tagc/run_passes.h. Shared memory begins as garbage.
class OneThreadExecutor {
 public:
  static void clear(void* memory, int64_t bytes) { std::memset(memory, 0, static_cast<size_t>(bytes)); }

  template <typename Pass>
  void run(const Pass& pass, int64_t /*max_groups*/, int64_t shared_bytes = kernels::most_shared_bytes<Pass>()) {
    constexpr int kGarbage = 0xa5;
    const auto shared = std::make_unique<std::byte[]>(static_cast<size_t>(shared_bytes));
    std::memset(shared.get(), kGarbage, static_cast<size_t>(shared_bytes));
    OneThread group(shared.get());
    pass(group);
  }
};

}  // namespace isthmus::test

namespace isthmus::kernels::ISTHMUS_KERNEL_NAMESPACE {

// All sixteen lanes are the thread's.
template <>
struct TeamsOf<test::OneThread> {
  static constexpr int64_t kThreads = 1;
  static VectorLanes lanes(test::OneThread& /*group*/) { return {}; }
};

}  // namespace isthmus::kernels::ISTHMUS_KERNEL_NAMESPACE
