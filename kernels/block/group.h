// Who runs a block algorithm: all threads of a group run it together, each on its share of a strided loop.
//
//   for (int64_t i = group.thread(); i < count; i += group.size()) ...
//
// On CPU the group is one thread whose size is a constant 1, so that these loops vectorise like plain ones. On CUDA it
// is a thread block (CtaGroup, cuda/group.cuh), or one thread of it. Updates that several threads may make to one word
// go through the group.
//
// Passes over a whole piece (passes.h) run on many groups side by side. These have more members than SerialGroup:
//
//   sync()                    all threads; writes before it are visible after it
//   sum(uint64_t)             of all threads, known to all
//   exclusive_sum(uint32_t value, uint32_t& total)   of the threads before this one; and of all
//   group_number(), num_groups()                     which of the groups this is
//   shared<T>()               memory of the group, T and the bytes after it; not initialised
//   fetch_add(word, operand)  of 32 or 64 bits; fetch_max and fetch_min of 32; apply_xor not of shared<T>()
//   is_last(uint32_t& arrived)   whether this group is the last of its pass to call this; all threads get the answer.
//                             The last group sees what the others wrote before their calls.
//                             All groups share `arrived`, which is 0 before the first call
//                             and after the last
//   is_last_of(uint32_t& arrived, int64_t num_groups)   the same of so many groups, which alone call it with `arrived`
//   exchange<d>(float)        of the thread whose number differs in bit d: 1, 2, 4 or 8. The size is a multiple of 16
//   any_in_step(bool)         of any thread that takes part in the same calls of exchange(), of others perhaps, known
//                             to all of these: 16 neighbours at least
//   ballot_in_step(bool)      of this thread's 16 neighbours, known to all of these: bit i is that of number i mod 16.
//                             The size is a multiple of 16
//   from_neighbour(float, i)  the value of the i-th of these 16
//   await(word, value)        until the host has published the value in this word of its own memory; all threads
//   publish(word, value)      word = value, of 32 or 64 bits, once this thread's earlier writes are visible to all
//                             threads and to the host
//
// any(), sum(), exclusive_sum(), is_last() and sync() are barriers: all threads of a group make the same calls in the
// same order. The same holds for exchange(), any_in_step(), ballot_in_step() and from_neighbour(), which are no
// barriers: a thread need not see what others wrote before them. There it holds of the threads of a warp alone on CUDA,
// and of a group where it is emulated.
#pragma once

#include <cstdint>

#include "kernels/block/host_device.h"

// Every instruction set compiles the block algorithms (see instruction_set.h), each in a namespace of its own: if their
// functions shared names, the linker would keep one copy, perhaps one that this machine cannot run.
#ifndef ISTHMUS_KERNEL_NAMESPACE
#error "define ISTHMUS_KERNEL_NAMESPACE before including a block algorithm"
#endif

namespace isthmus::kernels::ISTHMUS_KERNEL_NAMESPACE {

// One thread. A group has these members, with these meanings.
struct SerialGroup {
  static constexpr int64_t thread() { return 0; }  // this thread's number, below size()
  static constexpr int64_t size() { return 1; }
  static bool any(bool condition) { return condition; }  // of any thread, known to all

  // word op= operand, seen by all threads at once; fetch_or returns the word as it was.
  static uint64_t fetch_or(uint64_t& word, uint64_t operand) {
    const uint64_t before = word;
    word |= operand;
    return before;
  }
  template <typename Word>
  static void apply_xor(Word& word, Word operand) {
    word ^= operand;
  }
};

// One thread of `Group`, alone: it runs a block algorithm beside the other threads, which run it elsewhere.
template <typename Group>
class ThreadOf {
 public:
  explicit ISTHMUS_DEVICE ThreadOf(Group group) : group_(group) {}
  static constexpr ISTHMUS_DEVICE int64_t thread() { return 0; }
  static constexpr ISTHMUS_DEVICE int64_t size() { return 1; }
  static ISTHMUS_DEVICE bool any(bool condition) { return condition; }
  ISTHMUS_DEVICE uint32_t fetch_or(uint32_t& word, uint32_t operand) { return group_.fetch_or(word, operand); }
  ISTHMUS_DEVICE void apply_xor(uint32_t& word, uint32_t operand) { group_.apply_xor(word, operand); }

 private:
  Group group_;
};

}  // namespace isthmus::kernels::ISTHMUS_KERNEL_NAMESPACE
