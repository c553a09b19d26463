// Who runs a pass (passes.h): all threads of a group run it together, each on its share of a strided loop.
//
//   for (int64_t i = group.thread(); i < count; i += group.size()) ...
//
// On CUDA a group is a thread block (CtaGroup, cuda/group.cuh); tests emulate groups. Updates that several threads may
// make to one word go through the group.
//
// any(), sum(), exclusive_sum(), is_last() and sync() are barriers: all threads of a group make the same calls in the
// same order. So they do for exchange(), any_in_step(), ballot_in_step() and from_neighbour(), which are no barriers: a
// thread need not see what others wrote before. For these it suffices on CUDA if the threads of a warp call alike; an
// emulated group needs all its threads.
#pragma once

#include <concepts>
#include <cstdint>

#include "kernels/block/host_device.h"

// Every instruction set compiles the block algorithms (see instruction_set.h) in its own namespace. If their functions
// shared names, the linker would keep one copy, which this machine might not be able to run.
#ifndef ISTHMUS_KERNEL_NAMESPACE
#error "define ISTHMUS_KERNEL_NAMESPACE before including a block algorithm"
#endif

namespace isthmus::kernels::ISTHMUS_KERNEL_NAMESPACE {

template <typename Group>
concept IsGroup = requires(Group group, bool condition, float value, int64_t count, uint32_t operand, uint32_t& word,
                           uint64_t wide, uint64_t& wide_word) {
  { group.thread() } -> std::same_as<int64_t>;  // this thread's number, below size()
  { group.size() } -> std::same_as<int64_t>;
  { group.any(condition) } -> std::same_as<bool>;  // whether it holds in any thread; all threads get the answer
  group.sync();                                    // all threads; writes before it are visible after it
  { group.sum(wide) } -> std::same_as<uint64_t>;   // over all threads, which all get it
  { group.exclusive_sum(operand, word) } -> std::same_as<uint32_t>;  // over threads before this one; word: over all
  { group.group_number() } -> std::same_as<int64_t>;                 // which of the groups this is
  { group.num_groups() } -> std::same_as<int64_t>;
  group.template shared<uint32_t>();  // memory of the group, T and the bytes after it; not initialised
  group.fetch_add(word, operand);
  group.fetch_add(wide_word, wide);
  group.fetch_max(word, operand);
  group.fetch_min(word, operand);
  group.fetch_or(wide_word, wide);
  { group.fetch_or(word, operand) } -> std::same_as<uint32_t>;  // the old word
  group.apply_xor(word, operand);                               // takes no words of shared<T>()
  // Whether this group is the last of its pass to call this; all its threads get the answer. The last group sees what
  // the others wrote before their calls. All groups share `word`, which is 0 before the first call and after the last.
  // is_last_of() is the same for `count` groups, the only ones that call it with `word`.
  { group.is_last(word) } -> std::same_as<bool>;
  { group.is_last_of(word, count) } -> std::same_as<bool>;
  // The value of the thread whose number differs in bit 1, 2, 4 or 8. The size is a multiple of 16.
  { group.template exchange<1>(value) } -> std::same_as<float>;
  // Whether it holds for any thread that takes part in the same calls of exchange(), of others perhaps, known to all of
  // these: 16 neighbours at least.
  { group.any_in_step(condition) } -> std::same_as<bool>;
  // The conditions of this thread's 16 neighbours, known to all of these: bit i is that of number i mod 16. The size is
  // a multiple of 16.
  { group.ballot_in_step(condition) } -> std::same_as<uint32_t>;
  { group.from_neighbour(value, 3) } -> std::same_as<float>;  // the value of one of these 16
  // word = value, of 32 or 64 bits, once this thread's earlier writes are visible to all threads and to the host.
  group.publish(word, operand);
};

// One thread of the CPU, with as much of a group as block algorithms ask for.
struct SoleThread {
  static constexpr int64_t thread() { return 0; }
  static constexpr int64_t size() { return 1; }
  static void sync() {}
  static bool any(bool condition) { return condition; }
  static uint32_t exclusive_sum(uint32_t value, uint32_t& total) {
    total = value;
    return 0;
  }
  static void fetch_or(uint64_t& word, uint64_t operand) { word |= operand; }
};

}  // namespace isthmus::kernels::ISTHMUS_KERNEL_NAMESPACE
