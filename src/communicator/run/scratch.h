// Memory for the intermediate buffers of one collective at a time.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "base/aligned_memory.h"
#include "isthmus/buffer.h"
#include "isthmus/device.h"

namespace isthmus {

// Hands out buffers of a device that live until reset(). Keeps the largest amount ever taken between two resets, so
// that a steady state allocates nothing. Not thread-safe. The device outlives it.
class Scratch {
 public:
  explicit Scratch(Device& device) : device_(&device) {}

  // Uninitialised, aligned to kBufferAlignment.
  Buffer take(int64_t num_elements, DataType dtype);
  // Every buffer that was taken becomes invalid.
  void reset();
  // As reset(), but frees no memory: pointers that a graph has captured stay valid.
  void rewind();
  int64_t bytes() const;

 private:
  struct Slab {
    DeviceMemory memory;
    int64_t bytes = 0;
    int64_t used_bytes = 0;
    int64_t free_bytes() const { return bytes - used_bytes; }
  };
  void add_slab(int64_t bytes);

  Device* device_;
  std::vector<Slab> slabs_;  // one in steady state; a further one wherever no other had room
};

// The scratch memory of one operation at a time.
struct ScratchPart {
  Scratch memory;
  EventPtr done;         // of the last use
  uint64_t capture = 0;  // the captured graph that the last use was part of
};

// Scratch memory for operations that are under way at the same time. Each has a part of its own; parts are taken in
// turn, and a part's next user waits on the device for its last one. On the CPU there is one part.
class ScratchInTurns {
 public:
  explicit ScratchInTurns(Device& device);

  // The part for an operation on `caller`. While a graph is captured there it is one of the parts that all graphs
  // share. Buffers of the part's last use become invalid.
  ScratchPart& next(Stream caller);
  int64_t bytes() const;

 private:
  static constexpr size_t kInTurns = 2;  // one operation is encoded while another one's packets cross

  Device* device_;
  std::vector<ScratchPart> parts_;  // at first those of operations that are not captured
  size_t num_parts_;                // of each kind
  size_t turn_ = 0;
};

}  // namespace isthmus
