#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "communicator/path/segments.h"
#include "communicator/plan/schedule.h"
#include "isthmus/codec_type.h"

namespace isthmus {
namespace {

Options options_of(const std::string& codec) {
  Options options;
  options.codec = codec;
  return options;
}

TEST(Schedule, WithoutStartAndRampTheLastStageIsAtOnce) {
  for (const std::string& codec : codec_names()) {
    const Options options = options_of(codec);
    EXPECT_EQ(stage_of(options, 0), num_ramp_stages(options));
    EXPECT_EQ(options_of_stage(options, stage_of(options, 0)).to_string(), options.to_string());
  }
}

TEST(Schedule, DenseStepsComeFirst) {
  Options options = options_of("quant");
  options.dense_steps = 3;
  EXPECT_EQ(stage_of(options, 2), kDense);
  EXPECT_EQ(stage_of(options, 3), num_ramp_stages(options));
  EXPECT_EQ(options_of_stage(options, kDense).codec, "none");
}

TEST(Schedule, QuantPassesEveryWiderCode) {
  Options options = options_of("quant");
  options.bits = 2;
  options.dense_steps = 10;
  options.ramp_steps = 7;
  std::vector<int64_t> bits;
  for (uint64_t step = 10; step < 19; ++step) {
    bits.push_back(options_of_stage(options, stage_of(options, step)).bits);
  }
  EXPECT_EQ(bits, (std::vector<int64_t>{8, 8, 8, 4, 4, 3, 3, 2, 2}));
}

TEST(Schedule, KeptSharesFallInEqualRatios) {
  Options options = options_of("sparse");
  options.sparsity = 1 - .25 / 16;
  options.ramp_steps = 4;
  for (uint64_t step = 0; step < 6; ++step) {
    const double kept = 1 - options_of_stage(options, stage_of(options, step)).sparsity;
    EXPECT_NEAR(kept, .25 / static_cast<double>(1U << std::min<uint64_t>(step, 4)), 1e-12) << step;
  }
}

TEST(Schedule, TagcHasRoomForWhatARampKeeps) {
  Options options = options_of("tagc");
  options.ramp_steps = 10;
  EXPECT_EQ(options_of_stage(options, stage_of(options, 0)).ratio, 0);
  EXPECT_EQ(options_of_stage(options, stage_of(options, 10)).ratio, options.ratio);
}

TEST(Schedule, ACodecThatDropsLittleHasNoRamp) {
  Options options = options_of("sparse");
  options.sparsity = .7;
  options.ramp_steps = 100;
  EXPECT_EQ(options_of_stage(options, stage_of(options, 0)).sparsity, .7);
  options = options_of("quant");
  options.bits = 8;
  options.ramp_steps = 100;
  EXPECT_EQ(options_of_stage(options, stage_of(options, 0)).bits, 8);
}

TEST(Schedule, StepsNearTheEndOfTime) {
  Options options = options_of("quant");
  options.dense_steps = options.ramp_steps = std::numeric_limits<int64_t>::max();
  EXPECT_EQ(stage_of(options, 0), kDense);
  EXPECT_EQ(stage_of(options, std::numeric_limits<uint64_t>::max()), num_ramp_stages(options));
}

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
