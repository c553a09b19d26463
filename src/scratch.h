// Memory for the intermediate buffers of one collective at a time.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <new>
#include <vector>

#include "isthmus/buffer.h"

namespace isthmus {

inline constexpr size_t kBufferAlignment = 64;  // a cache line, and the widest vector

// `bytes` of uninitialised memory, aligned to kBufferAlignment. Throws std::bad_alloc.
struct AlignedDelete {
  void operator()(std::byte* memory) const { ::operator delete[](memory, std::align_val_t{kBufferAlignment}); }
};
using AlignedMemory = std::unique_ptr<std::byte[], AlignedDelete>;

inline AlignedMemory allocate_aligned(int64_t bytes) {
  return AlignedMemory(new (std::align_val_t{kBufferAlignment}) std::byte[static_cast<size_t>(bytes)]);
}

// Hands out buffers that live until reset(). It keeps the most that was ever taken between two resets, so that a steady
// state allocates nothing. Not thread-safe.
class Scratch {
 public:
  // Uninitialised, aligned to kBufferAlignment.
  Buffer take(int64_t num_elements, DataType dtype);
  // Every buffer that was taken becomes invalid.
  void reset();
  int64_t bytes() const;

 private:
  struct Slab {
    AlignedMemory memory;
    int64_t bytes = 0;
    int64_t used_bytes = 0;
  };
  std::vector<Slab> slabs_;  // one in steady state; a further one wherever the last was too short
};

}  // namespace isthmus
