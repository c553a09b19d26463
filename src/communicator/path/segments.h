// Cuts a piece into segments. Each is encoded, exchanged and decoded by itself, so that one is encoded while another
// crosses.
#pragma once

#include <algorithm>
#include <cstdint>
#include <vector>

#include "base/rounding.h"

namespace isthmus {

struct Segment {
  int64_t begin = 0;  // in elements of the piece
  int64_t num_elements = 0;
  uint8_t index = 0;
  bool is_last = false;
};

// Segments begin at multiples of this, a multiple of every codec's block.
inline constexpr int64_t kSegmentAlignment = 4096;
// The default has at most this many segments, each with at least this many elements: shorter segments cost more latency
// than they hide.
inline constexpr int64_t kMostChosenSegments = 8;
inline constexpr int64_t kLeastChosenElements = 262144;
// A segment on a GPU costs at least five launches, so a rank should send at least this many bytes of packets in it.
inline constexpr int64_t kLeastChosenPacketBytes = 4 << 20;

inline int64_t segments_for_packets(int64_t packet_bytes) {
  return std::clamp<int64_t>(packet_bytes / kLeastChosenPacketBytes, 1, kMostChosenSegments);
}

// There is at least one segment, even of an empty piece; all but the last are equal. wanted: options.segments; 0:
// chosen by the number of elements.
inline std::vector<Segment> segments_of(int64_t num_elements, int64_t wanted) {
  const int64_t count =
      wanted > 0 ? wanted : std::clamp<int64_t>(num_elements / kLeastChosenElements, 1, kMostChosenSegments);
  const int64_t length =
      std::max<int64_t>(round_up(divide_up(num_elements, count), kSegmentAlignment), kSegmentAlignment);
  std::vector<Segment> segments;
  do {
    const int64_t begin = static_cast<int64_t>(segments.size()) * length;
    segments.push_back({begin, std::min(length, num_elements - begin), static_cast<uint8_t>(segments.size())});
  } while (segments.back().begin + segments.back().num_elements < num_elements);
  segments.back().is_last = true;
  return segments;
}

}  // namespace isthmus
