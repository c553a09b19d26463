// The steps of the packets' checksum, the same on every executor. docs/packet_format.md defines it.
#pragma once

#include <cstdint>

#include "kernels/block/host_device.h"
#include "kernels/block/mix.h"

namespace isthmus::kernels {

inline constexpr int64_t kChecksumWordBytes = 8;
inline constexpr int64_t kChecksumLanes = 8;  // chains in a segment
inline constexpr int64_t kChecksumRowBytes = kChecksumLanes * kChecksumWordBytes;
inline constexpr int64_t kChecksumSegmentRows = 64;
inline constexpr int64_t kChecksumSegmentBytes = kChecksumSegmentRows * kChecksumRowBytes;

// The initial state of the chain of a segment's lane: different for all chains of a packet.
ISTHMUS_DEVICE uint64_t checksum_begin(int64_t segment, int64_t lane) {
  return static_cast<uint64_t>(segment * kChecksumLanes + lane + 1);
}

// One word more. One to one in the state and in the word.
ISTHMUS_DEVICE uint64_t checksum_step(uint64_t state, uint64_t word) {
  const uint64_t product = (state ^ word) * 0x9e3779b97f4a7c15;
  return product << 29 | product >> 35;
}

// The chain's summand in the packet's checksum: every bit of it depends on every bit of the chain. One to one.
ISTHMUS_DEVICE uint64_t checksum_end(uint64_t state) { return mix(state); }

}  // namespace isthmus::kernels
