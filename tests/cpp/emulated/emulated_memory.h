// Memory of an emulated device.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <string>

#include "base/aligned_memory.h"
#include "isthmus/device.h"
#include "tests/cpp/support/stream_order.h"

namespace isthmus::test {

// Addresses that it hands out cannot be read or written: whoever touches memory of a device outside a stream dies of
// it. Work on streams uses the memory behind them. New memory, and what was freed, holds NaN in every floating type.
// Thread-safe.
class EmulatedMemory : public std::enable_shared_from_this<EmulatedMemory> {
 public:
  // Throws std::bad_alloc.
  DeviceMemory allocate(int64_t bytes);

  // Where the bytes of a device's address are. Addresses of no block of memory: null.
  void* behind(const void* address) const;
  ConstBuffer behind(ConstBuffer buffer) const { return {behind(buffer.data), buffer.num_elements, buffer.dtype}; }
  Buffer behind(Buffer buffer) const { return {behind(buffer.data), buffer.num_elements, buffer.dtype}; }

  // Why work that is enqueued now must not use this; empty: it may.
  std::string objection(const MemoryUse& use) const;

  // Whether nothing was written right behind any block.
  bool ends_are_intact() const;

  // No work is under way: what was freed becomes NaN.
  void poison_freed();

 private:
  struct Block {
    int64_t bytes = 0;
    AlignedMemory memory;
    std::shared_ptr<void> addresses;  // reserved, so that no other block gets them
    bool is_freed = false;
  };
  // The block that begins last before or at `address`; null: none does.
  const Block* block_before(uintptr_t address, uintptr_t& begin) const;

  mutable std::mutex mutex_;
  std::map<uintptr_t, Block> blocks_;  // kept for good
};

}  // namespace isthmus::test
