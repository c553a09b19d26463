#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "communicator/path/segments.h"

namespace isthmus {
namespace {

void expect_covers(int64_t num_elements, int64_t wanted, size_t expected_segments) {
  SCOPED_TRACE(std::to_string(num_elements) + " elements, wanted " + std::to_string(wanted));
  const std::vector<Segment> segments = segments_of(num_elements, wanted);
  EXPECT_EQ(segments.size(), expected_segments);
  int64_t begin = 0;
  for (size_t i = 0; i < segments.size(); ++i) {
    EXPECT_EQ(segments[i].begin, begin);
    EXPECT_EQ(segments[i].begin % kSegmentAlignment, 0);
    EXPECT_EQ(segments[i].index, i);
    EXPECT_EQ(segments[i].is_last, i + 1 == segments.size());
    begin += segments[i].num_elements;
  }
  EXPECT_EQ(begin, num_elements);
}

TEST(Segments, CoverAPieceAndAreAligned) {
  expect_covers(0, 0, 1);
  expect_covers(1, 0, 1);
  expect_covers(2 * kLeastChosenElements - 1, 0, 1);
  expect_covers(2 * kLeastChosenElements, 0, 2);
  expect_covers(2 * kLeastChosenElements + 1, 0, 2);
  expect_covers(100'000'000, 0, kMostChosenSegments);
  expect_covers(kSegmentAlignment, 64, 1);
  expect_covers(kSegmentAlignment + 1, 64, 2);
  expect_covers(64 * kSegmentAlignment, 64, 64);
  expect_covers(64 * kSegmentAlignment + 1, 64, 33);
  expect_covers(1'000'003, 5, 5);
}

TEST(Segments, OfAGpuAreWorthTheirLaunches) {
  EXPECT_EQ(segments_for_packets(0), 1);
  EXPECT_EQ(segments_for_packets(2 * kLeastChosenPacketBytes - 1), 1);
  EXPECT_EQ(segments_for_packets(2 * kLeastChosenPacketBytes), 2);
  EXPECT_EQ(segments_for_packets(int64_t{1} << 40), kMostChosenSegments);
}

}  // namespace
}  // namespace isthmus
