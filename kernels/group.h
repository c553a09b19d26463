// Who runs a block algorithm: all threads of a group run it together, each on its share of a strided loop.
//
//   for (int64_t i = group.thread(); i < count; i += group.size()) ...
//
// On CPU the group is one thread whose size is a constant 1, so that these loops vectorise like plain ones. On CUDA it
// will be a thread block. Updates that several threads may make to one word go through the group.
#pragma once

#include <cstdint>

#include "kernels/host_device.h"

// Every instruction set compiles the block algorithms anew (see instruction_set.h). Each does so in a namespace of its
// own: were their functions to share names, the linker would keep one copy, perhaps one that this machine cannot run.
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
  static void apply_xor(uint32_t& word, uint32_t operand) { word ^= operand; }
};

}  // namespace isthmus::kernels::ISTHMUS_KERNEL_NAMESPACE
