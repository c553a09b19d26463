// Memory for vectors of any width.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <new>

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

}  // namespace isthmus
