// A link that is not there: what is sent arrives at once, from the sender itself, and the link is busy for as long as
// the bytes would have taken.
#pragma once

#include <driver_types.h>

#include <cstdint>
#include <vector>

#include "kernels/block/device.h"

namespace isthmus::wire {

enum class Link { kIntra, kInter };
inline constexpr int kNumLinks = 2;

// Bytes that are copied. sender: of the packet that they are, if they are one: the copy names that node as its sender,
// as decoders expect of what crossed; -1: they are copied as they are.
struct Part {
  const void* from = nullptr;
  void* to = nullptr;
  int64_t bytes = 0;
  int sender = -1;
};

// Operations that NCCL would run as one kernel. hold_s: how long they alone would keep the link busy; transfers over
// one link follow each other. num_blocks: multiprocessors that are held meanwhile.
struct Transfer {
  std::vector<Part> parts;
  Link link = Link::kIntra;
  double hold_s = 0;
  double latency_s = 0;
  int num_blocks = 1;
};

// A packet's header names its sender in this word (kernels::kHeaderElements): returns it with another one.
ISTHMUS_DEVICE uint64_t readdressed(uint64_t word, int sender) {
  constexpr int kBit = kernels::kHeaderSenderBit;
  return (word & ((uint64_t{1} << kBit) - 1)) | (static_cast<uint64_t>(sender) << kBit);
}

// Enqueues a transfer. Two files define it: for a GPU, and for the fake one, where nothing waits. Throws nothing;
// returns CUDA's error.
cudaError_t transmit(const Transfer& transfer, cudaStream_t stream);

}  // namespace isthmus::wire
