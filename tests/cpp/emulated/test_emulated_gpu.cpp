// The emulated GPU complains about what it says it complains about, and orders what is ordered.
#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "isthmus/error.h"
#include "tests/cpp/emulated/emulated_transport.h"
#include "tests/cpp/support/gpu_world.h"
#include "transport/in_process.h"

namespace isthmus {
namespace {

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
  expect_complaint(gpu_, "nothing orders \"copy, caller 10\"");
}

TEST_F(TwoStreams, AWriteThatNothingOrdersAfterTheRead) {
  claim_copy(a_, b_, first_);
  claim_clear(a_, second_);
  expect_complaint(gpu_, "nothing orders \"clear");
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

TEST_F(TwoStreams, OrdersAreMissedInAGraphToo) {
  gpu_.begin_capture(first_);
  gpu_.order(first_, second_);
  copy(a_, b_, first_);
  copy(b_, c_, second_);
  gpu_.order(second_, first_);
  gpu_.end_capture(first_);
  expect_complaint(gpu_, "nothing orders \"convert");
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

}  // namespace
}  // namespace isthmus
