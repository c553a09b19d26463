// What the paths of a communicator are made of: segments of pieces, and scratch memory.
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <string>
#include <vector>

#include "base/aligned_memory.h"
#include "communicator/path/segments.h"
#include "communicator/run/scratch.h"

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

// Takes one buffer of each size, fills it, and checks that nobody else wrote to it.
std::vector<void*> take_all(Scratch& scratch, const std::vector<int64_t>& sizes) {
  std::vector<Buffer> buffers;
  for (const int64_t elements : sizes) {
    buffers.push_back(scratch.take(elements, DataType::kFloat32));
    EXPECT_EQ(buffers.back().num_elements, elements);
    EXPECT_EQ(reinterpret_cast<uintptr_t>(buffers.back().data) % kBufferAlignment, 0u);
    std::memset(buffers.back().data, static_cast<int>(buffers.size()), static_cast<size_t>(buffers.back().bytes()));
  }
  std::vector<void*> places;
  for (size_t i = 0; i < buffers.size(); ++i) {
    const auto* bytes = buffers[i].as<uint8_t>();
    EXPECT_TRUE(std::all_of(bytes, bytes + buffers[i].bytes(), [&](uint8_t byte) { return byte == i + 1; }));
    places.push_back(buffers[i].data);
  }
  return places;
}

TEST(Scratch, BuffersAreAlignedAndApart) {
  const auto device = make_host_device();
  Scratch scratch(*device);
  take_all(scratch, {1, 0, 17, 16, 1000, 3});
  scratch.reset();
  take_all(scratch, {1000, 1, 2000, 0});
}

TEST(Scratch, TheSecondRoundTakesOneSlabAndTheThirdTheSame) {
  const auto device = make_host_device();
  Scratch scratch(*device);
  const std::vector<int64_t> sizes = {100, 1, 5000};
  take_all(scratch, sizes);
  const int64_t bytes = scratch.bytes();
  EXPECT_EQ(bytes, 448 + 64 + 20032);
  scratch.reset();
  const std::vector<void*> places = take_all(scratch, sizes);
  for (int round = 0; round < 20; ++round) {
    scratch.reset();
    EXPECT_EQ(take_all(scratch, sizes), places);
    EXPECT_EQ(scratch.bytes(), bytes);
  }
}

TEST(Scratch, KeepsTheMostThatWasTaken) {
  const auto device = make_host_device();
  Scratch scratch(*device);
  take_all(scratch, {5000});
  scratch.reset();
  take_all(scratch, {16});
  scratch.reset();
  take_all(scratch, {4000, 1000});
  EXPECT_EQ(scratch.bytes(), 20032);
}

}  // namespace
}  // namespace isthmus
