#include "communicator/run/scratch.h"

#include <algorithm>
#include <iterator>
#include <numeric>

#include "base/aligned_memory.h"
#include "base/rounding.h"

namespace isthmus {

Buffer Scratch::take(int64_t num_elements, DataType dtype) {
  const int64_t bytes = round_up(num_elements * element_bytes(dtype), kBufferAlignment);
  auto slab = std::find_if(slabs_.begin(), slabs_.end(), [&](const Slab& s) { return s.free_bytes() >= bytes; });
  if (slab == slabs_.end()) {
    add_slab(bytes);
    slab = std::prev(slabs_.end());
  }
  std::byte* data = static_cast<std::byte*>(slab->memory.get()) + slab->used_bytes;
  slab->used_bytes += bytes;
  return {data, num_elements, dtype};
}

void Scratch::add_slab(int64_t bytes) { slabs_.push_back({device_->allocate(bytes), bytes, 0}); }

void Scratch::reset() {
  if (slabs_.size() > 1) {
    const int64_t total_bytes = bytes();
    slabs_.clear();
    add_slab(total_bytes);
  }
  rewind();
}

void Scratch::rewind() {
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

ScratchInTurns::ScratchInTurns(Device& device) : device_(&device), num_parts_(device.is_host() ? 1 : kInTurns) {
  parts_.assign(2 * num_parts_, ScratchPart{Scratch(device), nullptr});
}

ScratchPart& ScratchInTurns::next(Stream caller) {
  const uint64_t capture = device_->capture(caller);
  ScratchPart& part = parts_[(capture != 0 ? num_parts_ : 0) + turn_];
  turn_ = (turn_ + 1) % num_parts_;
  if (capture != 0) {
    part.memory.rewind();
  } else {
    part.memory.reset();
  }
  if (part.capture != capture) {  // a capture cannot wait for events of another graph
    part.done = nullptr;
    part.capture = capture;
  }
  return part;
}

int64_t ScratchInTurns::bytes() const {
  return std::accumulate(parts_.begin(), parts_.end(), int64_t{0},
                         [](int64_t sum, const ScratchPart& part) { return sum + part.memory.bytes(); });
}

}  // namespace isthmus
