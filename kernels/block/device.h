// Memory that passes on a device share with the host: words that change from step to step, so that a captured graph
// needs no new arguments, and words that report results, so that the host need not wait.
#pragma once

#include <cstdint>

#include "isthmus/device_context.h"
#include "kernels/block/host_device.h"

namespace isthmus::kernels {

using isthmus::DeviceContext;

// In device memory; the owner sets it to zero. Encodings add to the first three; the end of a step updates the others.
struct DeviceCounts {
  uint64_t chosen_elements = 0;  // by the threshold; those that were not kept are held back
  uint64_t kept_elements = 0;
  uint64_t non_finite_blocks = 0;
  uint64_t kept_before_step = 0;  // kept_elements where the last step ended
  uint64_t skipped_elements = 0;  // kept in steps whose result was thrown away
};

// The 48 bytes of PacketHeader. The kernels fill in, and compare, whole words.
inline constexpr int kHeaderWords = 6;
inline constexpr int kHeaderUnit = 1;
inline constexpr int kHeaderStep = 2;
inline constexpr int kHeaderElements = 3;  // 48 bits; above them the sender
inline constexpr int kHeaderSenderBit = 48;
inline constexpr int kHeaderChecksum = 5;
struct HeaderWords {
  uint64_t word[kHeaderWords] = {};
};

// The nodes that encoded the packets of one decoding, as in PacketContext.
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
};

// The first fault of decoding; in device memory, or in host memory that the device can write. Sticky: once `reported`
// is set no packet is decoded until the owner writes a fresh DeviceFault.
struct DeviceFault {
  static constexpr uint32_t kNone = 0xffffffff;
  static constexpr uint32_t kKinds = 16;
  static ISTHMUS_DEVICE uint32_t code_of(int64_t packet, FaultKind kind) {
    return static_cast<uint32_t>(packet) * kKinds + static_cast<uint32_t>(kind);
  }

  uint32_t code = kNone;      // of the first packet's first failed check
  uint32_t reported = 0;      // 1 when what follows is valid
  HeaderWords received = {};  // header of the packet that was refused
  HeaderWords expected = {};  // its checksum is that of the bytes received

  int64_t packet() const { return code / kKinds; }
  FaultKind kind() const { return static_cast<FaultKind>(code % kKinds); }
};

// State of one decoding. Its first pass sets it to this.
struct DecodeState {
  uint32_t arrived = 0;  // groups at the end of the pass under way
};

// Checksums of packets in parts: each group of one pass writes its part, and a later pass, or the last group, adds them
// up. So nothing has to be cleared first.
struct ChecksumParts {
  static constexpr int64_t kMaxGroups = 1024;  // of the pass that writes
  static constexpr int64_t num_words(int64_t num_packets) { return 1 + num_packets * kMaxGroups; }

  uint64_t* words;  // num_words: how many groups wrote, then kMaxGroups for each packet
};

}  // namespace isthmus::kernels
