// The emulated GPU complains about what it says it complains about, and orders what is ordered.
#include <gtest/gtest.h>

#include <atomic>
#include <chrono>
#include <string>
#include <vector>

#include "isthmus/error.h"
#include "tests/cpp/emulated/emulated_transport.h"
#include "tests/cpp/support/gpu_world.h"
#include "transport/in_process.h"

namespace isthmus {
namespace {

using std::chrono::microseconds;
using test::Array;
using test::DeviceArray;
using test::EmulatedGpu;
using test::EmulatedTransport;
using test::Sums;

constexpr DataType kFloat32 = DataType::kFloat32;

// One complaint, which has these words in it.
void expect_complaint(EmulatedGpu& gpu, const std::string& words) {
  gpu.synchronize();
  const std::vector<std::string> complaints = gpu.take_complaints();
  ASSERT_EQ(complaints.size(), 1u) << "expected: " << words;
  EXPECT_NE(complaints[0].find(words), std::string::npos) << complaints[0];
}

// Two streams, two arrays, and the copy from one to the other.
class TwoStreams : public ::testing::Test {
 protected:
  void copy(const DeviceArray& from, const DeviceArray& to, Stream stream) {
    gpu_.convert(from.buffer(), to.buffer(), stream);
  }
  // Work that says that it copies, or clears, and does nothing: for what would be a race.
  void claim_copy(const DeviceArray& from, const DeviceArray& to, Stream stream) {
    gpu_.enqueue(stream, "copy", {test::reads(from.buffer()), test::writes(to.buffer())}, [] {});
  }
  void claim_clear(const DeviceArray& array, Stream stream) {
    gpu_.enqueue(stream, "clear", {test::writes(array.buffer())}, [] {});
  }

  EmulatedGpu gpu_;
  Stream first_ = gpu_.make_stream();
  Stream second_ = gpu_.make_stream();
  DeviceArray a_{gpu_, Array({1, 2, 3}, kFloat32)};
  DeviceArray b_{gpu_, 3, kFloat32};
  DeviceArray c_{gpu_, 3, kFloat32};
};

TEST_F(TwoStreams, NewMemoryIsNanAndCopiesArrive) {
  EXPECT_TRUE(std::isnan(b_.read().values()[2]));
  copy(a_, b_, first_);
  gpu_.order(first_, second_);
  copy(b_, c_, second_);
  EXPECT_EQ(c_.read().values(), (std::vector<double>{1, 2, 3}));
}

TEST_F(TwoStreams, AReadThatNothingOrdersAfterTheWrite) {
  claim_copy(a_, b_, first_);
  claim_copy(b_, c_, second_);
  expect_complaint(gpu_, "nothing orders \"copy, caller 8\"");
}

TEST_F(TwoStreams, AWriteThatNothingOrdersAfterTheRead) {
  claim_copy(a_, b_, first_);
  claim_clear(a_, second_);
  expect_complaint(gpu_, "nothing orders \"clear");
}

TEST_F(TwoStreams, ReadsMayMeet) {
  copy(a_, b_, first_);
  copy(a_, c_, second_);
}

TEST_F(TwoStreams, PartsThatDoNotOverlapMayMeet) {
  gpu_.clear(a_.buffer().slice(0, 1), first_);
  gpu_.clear(a_.buffer().slice(1, 2), second_);
}

TEST_F(TwoStreams, AnEventIsWhatWasEnqueuedWhenItWasRecorded) {
  const EventPtr event = gpu_.make_event();
  gpu_.wait(event, second_);  // never recorded
  gpu_.record(event, first_);
  claim_copy(a_, b_, first_);
  gpu_.wait(event, second_);
  claim_copy(b_, c_, second_);
  expect_complaint(gpu_, "nothing orders");
  gpu_.record(event, first_);
  copy(a_, b_, first_);
  gpu_.record(event, first_);
  gpu_.wait(event, second_);
  copy(b_, c_, second_);
}

TEST_F(TwoStreams, OrderPassesFromStreamToStream) {
  const Stream third = gpu_.make_stream();
  copy(a_, b_, first_);
  gpu_.order(first_, third);
  gpu_.order(third, second_);
  copy(b_, c_, second_);
}

TEST_F(TwoStreams, TheHostMayOrderByWaiting) {
  copy(a_, b_, first_);
  gpu_.synchronize(first_);
  copy(b_, c_, second_);
}

TEST_F(TwoStreams, WorkWaitsForItsTurnEvenWhereAStreamIsSlow) {
  gpu_.slow_down(first_, microseconds(5000));
  const EventPtr begin = gpu_.make_event();
  const EventPtr end = gpu_.make_event();
  gpu_.record(begin, first_);
  copy(a_, b_, first_);
  gpu_.order(first_, second_);
  copy(b_, c_, second_);
  gpu_.record(end, second_);
  EXPECT_EQ(c_.read().values(), (std::vector<double>{1, 2, 3}));
  EXPECT_TRUE(gpu_.done(end));
  EXPECT_GT(gpu_.seconds_between(begin, end).value_or(0), 0);
}

TEST_F(TwoStreams, MemoryOfTheHostOrPastTheEndOrFreed) {
  Array host(3, kFloat32);
  gpu_.clear({host.buffer().data, 0, kFloat32}, first_);
  const Buffer short_by_one = a_.buffer().slice(1, 3);
  EXPECT_TRUE(gpu_.memory().objection(test::reads(host.view())).find("not all, one block") != std::string::npos);
  EXPECT_TRUE(gpu_.memory().objection(test::reads(short_by_one)).find("not all, one block") != std::string::npos);
  void* freed = gpu_.allocate(8).get();
  gpu_.clear({freed, 2, kFloat32}, first_);
  expect_complaint(gpu_, "uses memory that was freed");
}

using EmulatedGpuDeathTest = TwoStreams;

TEST_F(EmulatedGpuDeathTest, TheHostCannotTouchTheDevicesMemory) {
  ::testing::GTEST_FLAG(death_test_style) = "threadsafe";
  EXPECT_DEATH(*a_.buffer().as<float>() = 0, "");
}

TEST_F(TwoStreams, RangesEnd) {
  gpu_.begin_range("outer");
  gpu_.begin_range("inner");
  gpu_.end_range();
  gpu_.end_range();
  EXPECT_EQ(gpu_.ranges(), (std::vector<std::string>{"outer", "inner"}));
  gpu_.end_range();
  expect_complaint(gpu_, "a range ended that was not begun");
  gpu_.begin_range("again");
}

TEST_F(TwoStreams, AGraphDoesWhenReplayedWhatWasEnqueued) {
  gpu_.begin_capture(first_);
  EXPECT_NE(gpu_.capture(first_), 0u);
  EXPECT_EQ(gpu_.capture(second_), 0u);
  gpu_.order(first_, second_);
  EXPECT_EQ(gpu_.capture(second_), gpu_.capture(first_));
  copy(a_, b_, second_);
  gpu_.order(second_, first_);
  copy(b_, c_, first_);
  const auto graph = gpu_.end_capture(first_);
  EXPECT_EQ(gpu_.capture(second_), 0u);
  EXPECT_TRUE(std::isnan(c_.read().values()[0])) << "nothing was done yet";
  for (const double value : {1.0, 5.0}) {
    a_.write(Array({value, value, value}, kFloat32));
    gpu_.replay(graph, first_);
    EXPECT_EQ(c_.read().values(), (std::vector<double>{value, value, value}));
  }
  gpu_.replay(graph, first_);
  claim_clear(a_, second_);
  expect_complaint(gpu_, "after \"replay of a graph");
}

TEST_F(TwoStreams, OrdersAreMissedInAGraphToo) {
  gpu_.begin_capture(first_);
  gpu_.order(first_, second_);
  copy(a_, b_, first_);
  copy(b_, c_, second_);
  gpu_.order(second_, first_);
  gpu_.end_capture(first_);
  expect_complaint(gpu_, "nothing orders \"convert");
}

TEST_F(TwoStreams, ALaneThatIsNotJoined) {
  gpu_.begin_capture(first_);
  gpu_.order(first_, second_);
  copy(a_, b_, second_);
  gpu_.end_capture(first_);
  expect_complaint(gpu_, "was not joined when the capture ended");
}

TEST_F(TwoStreams, ACaptureWaitsForNothingOutsideIt) {
  const EventPtr outside = gpu_.make_event();
  gpu_.record(outside, second_);
  gpu_.begin_capture(first_);
  gpu_.wait(outside, first_);
  gpu_.end_capture(first_);
  expect_complaint(gpu_, "waits for an event from outside");
}

TEST_F(TwoStreams, NothingOutsideWaitsForACapture) {
  const EventPtr inside = gpu_.make_event();
  gpu_.begin_capture(first_);
  gpu_.record(inside, first_);
  gpu_.end_capture(first_);
  gpu_.wait(inside, second_);
  expect_complaint(gpu_, "waits for an event of a capture that has ended");
}

TEST_F(TwoStreams, CapturesDoNotWaitForEachOther) {
  const EventPtr inside = gpu_.make_event();
  gpu_.begin_capture(first_);
  gpu_.record(inside, first_);
  gpu_.begin_capture(second_);
  gpu_.wait(inside, second_);
  gpu_.end_capture(second_);
  gpu_.end_capture(first_);
  expect_complaint(gpu_, "waits for an event of another capture");
}

TEST_F(TwoStreams, NoWaitingForTheDeviceInACapture) {
  gpu_.begin_capture(first_);
  gpu_.synchronize(second_);
  gpu_.end_capture(first_);
  expect_complaint(gpu_, "while a graph is captured");
}

TEST_F(TwoStreams, AGraphThatOutlivesItsMemory) {
  auto memory = gpu_.allocate(8);
  gpu_.begin_capture(first_);
  gpu_.clear({memory.get(), 2, kFloat32}, first_);
  const auto graph = gpu_.end_capture(first_);
  memory.reset();
  gpu_.replay(graph, first_);
  expect_complaint(gpu_, "replay of clear");
}

// Two ranks of one tier, in one thread: only streams wait.
class TwoRanks : public ::testing::Test {
 protected:
  struct Rank {
    std::shared_ptr<EmulatedGpu> gpu = std::make_shared<EmulatedGpu>();
    Stream stream = gpu->make_stream();
    std::unique_ptr<EmulatedTransport> tier;
  };

  void connect(Sums sums) {
    for (int r = 0; r < 2; ++r) {
      ranks_[r].tier =
          std::make_unique<EmulatedTransport>(ranks_[r].gpu, hub_.transport("tier", {0, 1}, r), true, sums);
    }
  }
  void TearDown() override {
    for (const Rank& rank : ranks_) {
      rank.gpu->synchronize();
    }
  }
  // What rank 0 gets of 1 + 2^-11 from each, where 1 comes from both: two to the -11 is lost if sums are rounded.
  double sum(DataType dtype, double value) {
    double result = 0;
    const DataType out_dtype = ranks_[0].tier->sum_type(dtype).dtype;
    std::vector<DeviceArray> inputs;
    std::vector<DeviceArray> outputs;
    for (const Rank& rank : ranks_) {
      inputs.emplace_back(*rank.gpu, Array({value, value}, dtype));
      outputs.emplace_back(*rank.gpu, 1, out_dtype);
      rank.tier->reduce_scatter(inputs.back().buffer(), outputs.back().buffer(), rank.stream)->wait(rank.stream);
    }
    result = outputs[0].read().values()[0];
    ranks_[1].gpu->synchronize();
    return result;
  }

  InProcessHub hub_{{0, 1}};
  Rank ranks_[2];
};

TEST_F(TwoRanks, SumsAsNcclAreOfTheInputsType) {
  connect(Sums::kLikeNccl);
  EXPECT_EQ(ranks_[0].tier->sum_type(DataType::kBFloat16).dtype, DataType::kBFloat16);
  EXPECT_EQ(ranks_[0].tier->sum_type(DataType::kFloat16).divisor, 2);
  EXPECT_EQ(sum(DataType::kFloat16, 60000), 60000) << "divided, and so not infinite";
  EXPECT_EQ(sum(DataType::kBFloat16, 1.5), 3);
  EXPECT_EQ(sum(DataType::kFloat64, 0.1), 0.2);
  EXPECT_EQ(ranks_[0].tier->traffic().inter_node_sent_bytes, 2 + 2 + 8);
}

TEST_F(TwoRanks, SumsAreAccumulatedByDefault) {
  connect(Sums::kAccumulated);
  EXPECT_EQ(sum(DataType::kFloat16, 60000), 120000);
}

TEST_F(TwoRanks, AGroupStartsWhenItEnds) {
  connect(Sums::kAccumulated);
  std::vector<DeviceArray> shards;
  std::vector<DeviceArray> gathered;
  for (const Rank& rank : ranks_) {
    shards.emplace_back(*rank.gpu, Array({1}, kFloat32));
    gathered.emplace_back(*rank.gpu, Array({2, 3}, kFloat32));
  }
  for (size_t i = 0; i < std::size(ranks_); ++i) {
    const Rank& rank = ranks_[i];
    rank.tier->begin_group();
    rank.tier->all_gather(shards[i].buffer(), gathered[i].buffer(), rank.stream);
    rank.gpu->clear(shards[i].buffer(), rank.stream);  // comes before it
    rank.tier->end_group();
  }
  EXPECT_EQ(gathered[0].read().values(), (std::vector<double>{0, 0}));
  EXPECT_EQ(ranks_[0].tier->groups(), (std::vector<int>{1}));
}

TEST_F(TwoStreams, OperationsOfATierMustBeOrdered) {
  InProcessHub hub({0});
  EmulatedTransport tier(std::shared_ptr<EmulatedGpu>(&gpu_, [](EmulatedGpu*) {}), hub.transport("tier", {0}, 0), false,
                         Sums::kAccumulated);
  tier.all_gather(a_.buffer(), b_.buffer(), first_);
  gpu_.order(first_, second_);
  tier.all_gather(a_.buffer(), c_.buffer(), second_);
  gpu_.begin_capture(first_);  // where they do not run
  gpu_.order(first_, second_);
  tier.all_gather(a_.buffer(), b_.buffer(), first_);
  tier.all_gather(a_.buffer(), c_.buffer(), second_);
  gpu_.order(second_, first_);
  gpu_.end_capture(first_);
  expect_complaint(gpu_, "nothing orders \"all-gather");
}

TEST_F(TwoRanks, AFailureIsThrownByLaterOperations) {
  connect(Sums::kAccumulated);
  const Rank& rank = ranks_[0];
  const DeviceArray array(*rank.gpu, Array({1, 2}, kFloat32));
  const DeviceArray out(*rank.gpu, 2, kFloat32);
  rank.tier->all_to_all(array.buffer(), out.buffer(), rank.stream);
  ranks_[1].tier->abort();
  rank.gpu->synchronize();
  EXPECT_THROW(rank.tier->all_to_all(array.buffer(), out.buffer(), rank.stream), TransportError);
}

}  // namespace
}  // namespace isthmus
