#include "communicator/run/scratch.h"

#include <algorithm>

#include "base/aligned_memory.h"
#include "base/rounding.h"

namespace isthmus {

Buffer Scratch::take(int64_t num_elements, DataType dtype) {
  const int64_t bytes = round_up(num_elements * element_bytes(dtype), kBufferAlignment);
  auto slab = std::ranges::find_if(slabs_, [&](const Slab& one) { return one.bytes - one.used_bytes >= bytes; });
  if (slab == slabs_.end()) {
    slab = slabs_.insert(slab, {device_->allocate(bytes), bytes});
  }
  std::byte* data = static_cast<std::byte*>(slab->memory.get()) + slab->used_bytes;
  slab->used_bytes += bytes;
  return {data, num_elements, dtype};
}

void Scratch::reset(bool keep_places) {
  if (slabs_.size() > 1 && !keep_places) {
    const int64_t total_bytes = bytes();
    slabs_.clear();
    slabs_.push_back({device_->allocate(total_bytes), total_bytes});
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

ScratchInTurns::ScratchInTurns(Device& device) : device_(&device) {
  const size_t num_parts = device.is_host() ? 1 : kInTurns;
  parts_.assign(num_parts, ScratchPart{Scratch(device), nullptr});
  graphs_parts_ = parts_;
}

ScratchPart& ScratchInTurns::next(Stream caller) {
  const uint64_t capture = device_->capture(caller);
  std::list<ScratchPart>& parts = capture != 0 ? graphs_parts_ : parts_;
  auto part = std::ranges::find(parts, false, &ScratchPart::is_held);
  if (part == parts.end()) {
    part = parts.insert(part, ScratchPart{Scratch(*device_), nullptr});
  }
  parts.splice(parts.end(), parts, part);
  part->memory.reset(/*keep_places=*/capture != 0);
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
