// Memory that passes on a device share with the host: words that change with each step, so that a captured graph needs
// no new arguments, and words that report results, so that the host need not wait.
#pragma once

#include <cstdint>

#include "isthmus/device_context.h"
#include "kernels/block/host_device.h"

namespace isthmus::kernels {

using isthmus::DeviceContext;
using isthmus::Magnitudes;

// Counts in device memory, which the owner zeroes.
struct DeviceCounts {
  uint64_t chosen_elements = 0;  // reached the threshold; those that were not kept are held back
  uint64_t kept_elements = 0;
  uint64_t non_finite_blocks = 0;
  uint64_t estimated_elements = 0;  // decodings in a single tier add to it
  uint64_t spikes = 0;              // residuals that were dropped
};

// The 48 bytes of PacketHeader. Kernels write and compare whole words.
inline constexpr int kHeaderWords = 6;
inline constexpr int kHeaderUnit = 1;
inline constexpr int kHeaderStep = 2;
inline constexpr int kHeaderElements = 3;  // in the lower 48 bits; the sender is above them
inline constexpr int kHeaderSenderBit = 48;
inline constexpr int kHeaderChecksum = 5;
struct HeaderWords {
  uint64_t word[kHeaderWords] = {};
};

// The nodes that encoded the packets of a decoding. See PacketContext.
struct PacketSenders {
  uint64_t first = 0;
  int64_t packets_of_each = 1;

  ISTHMUS_DEVICE uint64_t of_packet(int64_t packet) const {
    return first + static_cast<uint64_t>(packet / packets_of_each);
  }
};

// Why a packet was refused, in the order of the checks.
enum class FaultKind : uint32_t {
  kHeader,       // differs from what is expected
  kChecksum,     // is not that of the bytes
  kPadding,      // is not zero
  kFlags,        // of a block past the last
  kIndex,        // of an element past the last
  kEmptyBlock,   // flagged, but marks no element
  kDoesNotPeel,  // within the bound on rounds
  kCellsLeft,    // the sketch holds more than the index says
  kBlock,        // of weights: does not decode
  kLength,       // of weights: is not that of the packet's blocks
  kUnits,        // no packet's: a rank tells another unit
};

// The first fault of decoding, in device memory or in host memory that the device can write. It is sticky: once
// `reported` is set, no packet is decoded until the owner writes a fresh DeviceFault.
struct DeviceFault {
  static constexpr uint32_t kNone = 0xffffffff;
  static constexpr uint32_t kKinds = 16;
  static ISTHMUS_DEVICE uint32_t code_of(int64_t packet, FaultKind kind) {
    return static_cast<uint32_t>(packet) * kKinds + static_cast<uint32_t>(kind);
  }

  uint32_t code = kNone;      // the first failed check of the first bad packet
  uint32_t reported = 0;      // 1 when what follows is valid
  HeaderWords received = {};  // header of the refused packet
  HeaderWords expected = {};  // with the checksum of the received bytes

  int64_t packet() const { return code / kKinds; }
  FaultKind kind() const { return static_cast<FaultKind>(code % kKinds); }
};

// The state of one decoding, which its first pass initialises.
struct DecodeState {
  uint32_t arrived = 0;  // groups that reached the end of the running pass
};

// Checksums of packets in parts. Each group of one pass writes its part, and a later pass or the last group adds the
// parts, so that nothing has to be cleared first.
struct ChecksumParts {
  static constexpr int64_t kMaxGroups = 1024;  // of the pass that writes parts
  static constexpr int64_t num_words(int64_t num_packets) { return 1 + num_packets * kMaxGroups; }

  uint64_t* words;  // num_words: how many groups wrote, then kMaxGroups for each packet
};

// Shared memory of a group, in bytes: what each GPU gives unasked, and what each gives a kernel that asks (sm_86 and
// sm_89 give the least: CUDA C++ Programming Guide, table of technical specifications).
inline constexpr int64_t kUnaskedSharedBytes = int64_t{48} * 1024;
inline constexpr int64_t kMostSharedBytes = int64_t{99} * 1024;

// Whether a kernel must ask: what it declares itself, in `fixed_bytes`, counts as well.
constexpr bool must_ask_for_shared(int64_t fixed_bytes, int64_t dynamic_bytes) {
  return fixed_bytes + dynamic_bytes > kUnaskedSharedBytes;
}

}  // namespace isthmus::kernels
