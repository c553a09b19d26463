// Memory for the intermediate buffers of collectives.
#pragma once

#include <cstddef>
#include <cstdint>
#include <list>
#include <vector>

#include "isthmus/buffer.h"
#include "isthmus/device.h"

namespace isthmus {

// Hands out device buffers that live until reset(). It keeps the largest amount taken between two resets, so that a
// steady state allocates nothing. Not thread-safe. The device outlives it.
class Scratch {
 public:
  explicit Scratch(Device& device) : device_(&device) {}

  // Uninitialised, aligned to kBufferAlignment.
  Buffer take(int64_t num_elements, DataType dtype);
  // Invalidates all buffers that were taken. keep_places: frees no memory, so that pointers in a graph stay valid.
  void reset(bool keep_places = false);
  int64_t bytes() const;

 private:
  struct Slab {
    DeviceMemory memory;
    int64_t bytes = 0;
    int64_t used_bytes = 0;
  };

  Device* device_;
  std::vector<Slab> slabs_;  // one in a steady state; another where no slab had room
};

// The scratch memory of one operation at a time.
struct ScratchPart {
  Scratch memory;
  EventPtr done;         // of the last use
  uint64_t capture = 0;  // the graph capture of the last use; 0: none
  bool is_held = false;  // by a Run
};

// Scratch memory for operations that overlap. Operations take the parts in turn, and a part's next user waits on the
// device for the last one. On the CPU there is one part. Where Runs hold all parts, there is one more from then on.
class ScratchInTurns {
 public:
  explicit ScratchInTurns(Device& device);

  // A part for an operation on `caller`, which no Run holds. While a graph is captured there, it is one of the parts
  // that all graphs share. Buffers from the part's last use become invalid.
  ScratchPart& next(Stream caller);
  int64_t bytes() const;

 private:
  static constexpr size_t kInTurns = 2;  // one operation is encoded while another one's packets cross

  Device* device_;
  std::list<ScratchPart> parts_;  // next in turn first
  std::list<ScratchPart> graphs_parts_;
};

}  // namespace isthmus
