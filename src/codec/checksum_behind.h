// The checksum of a packet that is written, or read, in two places at once: sections at its front, which are complete
// only at the end, and a body that grows.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>

#include "codec/checksum.h"
#include "isthmus/packet_header.h"

namespace isthmus {

// Follows the code that writes or reads the body, so that its bytes are still in the cache. Segments of the checksum
// have no order: those entirely inside the body are added as they come, and the bytes before them at the end.
class ChecksumBehind {
 public:
  // packet: a header of 48 bytes, then the bytes of the checksum up to `end`. The body begins at `body`. Both are
  // offsets in bytes.
  ChecksumBehind(const std::byte* packet, int64_t body, int64_t end)
      : first_segment_(divide_up(body - kBegin, kernels::kChecksumSegmentBytes)),
        packet_(packet),
        end_(end),
        taken_(std::min(end, kBegin + first_segment_ * kernels::kChecksumSegmentBytes)),
        front_end_(taken_),
        body_(first_segment_) {}

  // The body is ready up to here.
  void advance(int64_t ready) {
    const int64_t rows = (ready - taken_) / kernels::kChecksumRowBytes;
    if (rows > 0) {
      take(rows * kernels::kChecksumRowBytes);
    }
  }

  // Everything is ready.
  uint64_t value() {
    take(end_ - taken_);
    Checksum front;
    front.add(packet_ + kBegin, front_end_ - kBegin);
    return front.value() + body_.value();
  }

 private:
  static constexpr int64_t kBegin = sizeof(PacketHeader);
  static constexpr int64_t divide_up(int64_t value, int64_t divisor) { return (value + divisor - 1) / divisor; }

  void take(int64_t num_bytes) {
    body_.add(packet_ + taken_, num_bytes);
    taken_ += num_bytes;
  }

  int64_t first_segment_;
  const std::byte* packet_;
  int64_t end_;
  int64_t taken_;
  int64_t front_end_;
  Checksum body_;
};

}  // namespace isthmus
