#include "scratch.h"

#include <algorithm>

namespace isthmus {

Buffer Scratch::take(int64_t num_elements, DataType dtype) {
  constexpr int64_t kAlignment = kBufferAlignment;
  const int64_t bytes = (num_elements * element_bytes(dtype) + kAlignment - 1) / kAlignment * kAlignment;
  if (slabs_.empty() || slabs_.back().bytes - slabs_.back().used_bytes < bytes) {
    slabs_.push_back({allocate_aligned(bytes), bytes, 0});
  }
  Slab& slab = slabs_.back();
  std::byte* data = slab.memory.get() + slab.used_bytes;
  slab.used_bytes += bytes;
  return {data, num_elements, dtype};
}

void Scratch::reset() {
  if (slabs_.size() > 1) {
    const int64_t total_bytes = bytes();
    slabs_.clear();
    slabs_.push_back({allocate_aligned(total_bytes), total_bytes, 0});
  }
  for (Slab& slab : slabs_) {
    slab.used_bytes = 0;
  }
}

int64_t Scratch::bytes() const {
  int64_t total = 0;
  for (const Slab& slab : slabs_) {
    total += slab.bytes;
  }
  return total;
}

}  // namespace isthmus
