// What room the packets of a gather are given on a GPU, by what earlier gathers needed.
#include <gtest/gtest.h>

#include <cstdint>
#include <vector>

#include "communicator/units/weight_history.h"

namespace isthmus {
namespace {

constexpr int64_t kMost = 1'000'000;
constexpr int64_t kPacket = 60'000;

// What the rail of a unit goes through: each gather is given room, and then found to need some.
class Rail {
 public:
  int64_t overflows = 0;  // packets that were longer than their room
  int64_t whole = 0;      // gathers with room for everything
  int64_t in_vain = 0;    // with room, and nothing had changed

  // Several times; the first of `changed` is the first gather.
  void go_through(const std::vector<bool>& changed, int times = 1) {
    for (int i = 0; i < times; ++i) {
      for (const bool has_changed : changed) {
        gather(has_changed ? kPacket : 0);
      }
    }
  }
  void gather(int64_t packet_bytes) {
    const int64_t capacity = history_.capacity(number_++, kMost);
    overflows += packet_bytes > capacity ? 1 : 0;
    whole += capacity == kMost ? 1 : 0;
    in_vain += capacity > 0 && packet_bytes == 0 ? 1 : 0;
    history_.add(packet_bytes);
  }
  void forget_counts() { overflows = whole = in_vain = 0; }
  WeightHistory& history() { return history_; }
  int64_t number() const { return number_; }

 private:
  WeightHistory history_;
  int64_t number_ = 0;
};

const std::vector<bool> kStep = {true, false};  // forward and backward
const std::vector<bool> kFourMicroBatches = {true, false, false, false, false, false, false, false};

TEST(WeightHistory, NothingKnownIsRoomForEverything) {
  const WeightHistory history;
  EXPECT_EQ(history.capacity(0, kMost), kMost);
  EXPECT_EQ(history.capacity(1, kMost), kMost);
}

TEST(WeightHistory, LearnsForwardAndBackwardInThreeSteps) {
  Rail rail;
  rail.go_through(kStep, 3);
  EXPECT_EQ(rail.overflows, 0);
  rail.forget_counts();
  rail.go_through(kStep, 1000);
  EXPECT_EQ(rail.overflows, 0);
  EXPECT_EQ(rail.whole, 0);
  EXPECT_EQ(rail.in_vain, 0);
}

TEST(WeightHistory, LearnsOneGatherAStep) {
  Rail rail;
  rail.go_through({true}, 5);
  rail.forget_counts();
  rail.go_through({true}, 1000);
  EXPECT_EQ(rail.overflows + rail.whole + rail.in_vain, 0);
}

TEST(WeightHistory, WeightsThatNeverChangeTakeHeadersAlone) {
  Rail rail;
  rail.go_through({false}, 5);
  rail.forget_counts();
  rail.go_through({false}, 1000);
  EXPECT_EQ(rail.overflows + rail.whole + rail.in_vain, 0);
}

TEST(WeightHistory, LearnsMicroBatchesAtTheCostOfOneOverflow) {
  Rail rail;
  rail.go_through(kFourMicroBatches, 3);
  EXPECT_LE(rail.overflows, 1);
  rail.forget_counts();
  rail.go_through(kFourMicroBatches, 300);
  EXPECT_EQ(rail.overflows + rail.whole + rail.in_vain, 0);
}

// Evaluations of one length, every ten steps: the weights change before the first gather of each.
TEST(WeightHistory, LearnsEvaluationsBetweenSteps) {
  Rail rail;
  const auto epoch = [&] {
    rail.go_through(kStep, 10);
    rail.go_through({true}, 1);
    rail.go_through({false}, 30);
    rail.go_through({false, false}, 1);
  };
  epoch();
  EXPECT_LE(rail.overflows, 1);
  epoch();
  EXPECT_LE(rail.overflows, 2);
  rail.forget_counts();
  for (int i = 0; i < 20; ++i) {
    epoch();
  }
  EXPECT_EQ(rail.overflows, 0);
  EXPECT_EQ(rail.whole, 0);
  EXPECT_EQ(rail.in_vain, 0);
}

// Their lengths ever differ: an overflow, at most, where training goes on.
TEST(WeightHistory, EvaluationsOfAnyLengthCostAnOverflowEach) {
  Rail rail;
  rail.go_through(kStep, 10);
  int64_t evaluations = 0;
  for (const int length : {7, 20, 3, 50, 11, 31, 2, 90, 17, 5}) {
    rail.gather(kPacket);
    rail.go_through({false}, length);
    rail.go_through(kStep, 20);
    ++evaluations;
  }
  EXPECT_LE(rail.overflows, 2 * evaluations);
  EXPECT_LE(rail.whole + rail.in_vain, 3 * evaluations + 5);
}

TEST(WeightHistory, RoomIsAQuarterMoreThanTheLongestOfFour) {
  Rail rail;
  for (const int64_t bytes : {900'000, 40'000, 100'000, 40'000, 40'000, 40'000}) {
    rail.gather(bytes);
    rail.gather(0);
  }
  // The next but one gather is not asked for: 40,000 of number 10 is.
  EXPECT_EQ(rail.history().capacity(12, kMost), 125'440);  // 100,000 * 1.25 + 256, in multiples of 256
  rail.gather(40'000);
  rail.gather(0);
  EXPECT_EQ(rail.history().capacity(14, kMost), 50'432);
  EXPECT_EQ(rail.history().capacity(14, 45'000), 45'000) << "no packet is longer";
}

// One rank may know the gather before, or two, another one not.
TEST(WeightHistory, WhatIsKnownBesidesDoesNotMatter) {
  Rail rail;
  for (int step = 0; step < 400; ++step) {
    rail.gather(kPacket + 100 * (step % 7));
    for (int i = 0; i < step % 5; ++i) {
      rail.gather(0);
    }
    WeightHistory knows_more = rail.history();
    knows_more.add(step % 3 == 0 ? 0 : kMost);
    const int64_t next = rail.number() + 1;
    ASSERT_EQ(knows_more.capacity(next, kMost), rail.history().capacity(next, kMost)) << step;
  }
}

}  // namespace
}  // namespace isthmus
