#include "communicator/run/scratch.h"

#include <algorithm>
#include <iterator>

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

ScratchInTurns::ScratchInTurns(Device& device) : device_(&device) {
  const size_t num_parts = device.is_host() ? 1 : kInTurns;
  parts_.assign(num_parts, ScratchPart{Scratch(device), nullptr});
  graphs_parts_ = parts_;
}

ScratchPart& ScratchInTurns::next(Stream caller) {
  const uint64_t capture = device_->capture(caller);
  std::list<ScratchPart>& parts = capture != 0 ? graphs_parts_ : parts_;
  auto part = std::find_if(parts.begin(), parts.end(), [](const ScratchPart& one) { return !one.is_held; });
  if (part == parts.end()) {
    part = parts.insert(part, ScratchPart{Scratch(*device_), nullptr});
  }
  parts.splice(parts.end(), parts, part);
  if (capture != 0) {
    part->memory.rewind();
  } else {
    part->memory.reset();
  }
  if (part->capture != capture) {  // a capture cannot wait for events of another graph
    part->done = nullptr;
    part->capture = capture;
  }
  return *part;
}

int64_t ScratchInTurns::bytes() const {
  int64_t total = 0;
  for (const std::list<ScratchPart>* parts : {&parts_, &graphs_parts_}) {
    for (const ScratchPart& part : *parts) {
      total += part.memory.bytes();
    }
  }
  return total;
}

}  // namespace isthmus
