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

TEST(WeightHistory, NothingKnownIsRoomForEverything) {
  const WeightHistory history;
  EXPECT_EQ(history.capacity(0, kMost), kMost);
  EXPECT_EQ(history.capacity(1, kMost), kMost);
}

// What repeats is learned at the cost of one overflow at most, and then costs nothing.
TEST(WeightHistory, LearnsWhatRepeats) {
  std::vector<bool> steps_and_evaluation;  // of one length, every ten steps: weights change before its first gather
  for (int step = 0; step < 10; ++step) {
    steps_and_evaluation.insert(steps_and_evaluation.end(), kStep.begin(), kStep.end());
  }
  steps_and_evaluation.push_back(true);
  steps_and_evaluation.resize(steps_and_evaluation.size() + 32, false);
  struct Case {
    const char* name;
    std::vector<bool> changed;
    int times;  // until it is learned
    int64_t most_overflows;
  };
  for (const Case& each : {Case{"forward and backward", kStep, 3, 0}, Case{"one gather a step", {true}, 5, 0},
                           Case{"nothing ever changes", {false}, 5, 0},
                           Case{"four micro-batches", {true, false, false, false, false, false, false, false}, 3, 1},
                           Case{"evaluations between steps", steps_and_evaluation, 2, 2}}) {
    SCOPED_TRACE(each.name);
    Rail rail;
    rail.go_through(each.changed, each.times);
    EXPECT_LE(rail.overflows, each.most_overflows);
    rail.forget_counts();
    rail.go_through(each.changed, 1000);
    EXPECT_EQ(rail.overflows + rail.whole + rail.in_vain, 0);
  }
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
