// What codecs of a device refuse, and sums of squares on emulated groups, which have the same bits however they are
// cut. All else that a device computes is the subject of tests/cpp/gpu/device.
#include <gtest/gtest.h>

#include <cstdint>
#include <limits>
#include <memory>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "codec/gpu_device.h"
#include "isthmus/codec_type.h"
#include "isthmus/device.h"
#include "isthmus/error.h"
#include "kernels/block/device.h"
#include "tests/cpp/emulated/emulated_device.h"
#include "tests/cpp/emulated/emulated_gpu.h"
#include "tests/cpp/emulated/emulated_passes.h"
#include "tests/cpp/support/typed_data.h"

namespace isthmus::test {
namespace {

constexpr int64_t kElements = 5000;

class DeviceCodec : public ::testing::TestWithParam<std::string> {
 protected:
  Buffer allocate(int64_t num_elements, DataType dtype) {
    memory_.push_back(gpu_.allocate(num_elements * element_bytes(dtype)));
    return {memory_.back().get(), num_elements, dtype};
  }
  static Options with_feedback() {
    Options options;
    options.error_feedback = ErrorFeedback::kOn;
    return options;
  }

  EmulatedGpu gpu_;
  const Stream stream_ = gpu_.lane(Lane::kEncode);
  const std::unique_ptr<Codec> codec_ = gpu_.make_codec(GetParam(), with_feedback(), DataType::kFloat32, 2);
  std::vector<DeviceMemory> memory_;
  const PacketContext context_ = {
      .on_device = allocate(sizeof(kernels::DeviceContext), DataType::kByte).as<kernels::DeviceContext>()};
  const int64_t packet_bytes_ = codec_->packet_bytes(kElements);
  const Buffer packet_ = allocate(packet_bytes_, DataType::kByte);
};
INSTANTIATE_TEST_SUITE_P(Codecs, DeviceCodec, ::testing::ValuesIn(codec_names()),
                         [](const auto& parameter) { return parameter.param; });

TEST_P(DeviceCodec, RefusesWrongDecodings) {
  const Buffer out = allocate(kElements, DataType::kFloat32);
  const Workspace scratch = {stream_, allocate(codec_->decode_each_scratch_bytes(kElements, 2), DataType::kByte)};
  if (GetParam() != "none") {
    EXPECT_THROW(codec_->decode_each(packet_, 1, out, {}, scratch), Error) << "no unit and step on the device";
  }
  EXPECT_THROW(codec_->decode_each(packet_, 2, out, context_, scratch), Error);
  EXPECT_THROW(codec_->decode_each(packet_, 3, out, context_, scratch), Error);
  EXPECT_THROW(codec_->decode_each(packet_, 0, out, context_, scratch), Error);
  EXPECT_THROW(codec_->decode_each(packet_, 1, out, context_, {stream_, {}}), Error);
}

TEST_P(DeviceCodec, RefusesWrongEncodings) {
  const Buffer piece = allocate(kElements, DataType::kFloat32);
  const Buffer residual = allocate(codec_->keeps_residual() ? kElements : 0, DataType::kFloat32);
  const Buffer scratch = allocate(codec_->encode_scratch_bytes({.num_elements = kElements}), DataType::kByte);
  const auto encode = [&](ConstBuffer from, Buffer rest, Buffer to, Buffer with) {
    codec_->encode_pieces(PieceSet::of_one(from, rest, to), context_, {stream_, with});
  };
  EXPECT_THROW(encode(allocate(kElements, DataType::kFloat64), residual, packet_, scratch), Error);
  EXPECT_THROW(encode(piece, residual, packet_.slice(64, packet_bytes_ - 64), scratch), Error);
  EXPECT_THROW(encode(piece, residual, packet_, scratch.slice(0, scratch.bytes() - 1)), Error);
  if (codec_->keeps_residual()) {
    EXPECT_THROW(encode(piece, residual.slice(0, kElements - 1), packet_, scratch), Error);
    EXPECT_THROW(encode(piece, {}, packet_, scratch), Error);
  }
}

// What a device adds to totals that are not zero, and what the CPU does.
struct SquaredErrors {
  SquaredError host;
  SquaredError device;

  SquaredErrors(int64_t num_elements, EmulatedDevice emulated) {
    const Array given(random_values(num_elements, 1), DataType::kFloat32);
    const Array decoded(random_values(num_elements, 2), DataType::kFloat32);
    host.given = host.dropped = device.given = device.dropped = 1000;
    const auto error = std::shared_ptr<SquaredError>(std::shared_ptr<void>(), &host);
    make_host_device()->add_squared_error(given.view(), decoded.view(), error, {});
    std::vector<double> scratch(kSquaredErrorScratchBytes / sizeof(double), std::numeric_limits<double>::quiet_NaN());
    kernels::emulated::run_passes(emulated,
                                  make_squared_error_job(given.view(), decoded.view(), &device,
                                                         {scratch.data(), kSquaredErrorScratchBytes, DataType::kByte}));
  }
};

TEST(ValuesDevice, SquaredErrorsDoNotDependOnTheDevice) {
  std::set<std::pair<double, double>> results;
  for (const int64_t max_groups : {1, 2, 5, 64}) {
    const SquaredErrors errors(50000, EmulatedDevice(32, max_groups, static_cast<uint32_t>(max_groups)));
    results.emplace(errors.device.given, errors.device.dropped);
    EXPECT_NEAR(errors.device.dropped, errors.host.dropped, 1e-10 * errors.host.dropped);
  }
  EXPECT_EQ(results.size(), 1U);
}

// For ThreadSanitizer.
TEST(ValuesDevice, SquaredErrorsOfThreadsAtOnce) {
  const SquaredErrors errors(3000, EmulatedDevice(5, 2, 1, EmulatedDevice::Threads::kAtOnce));
  EXPECT_NEAR(errors.device.dropped, errors.host.dropped, 1e-10 * errors.host.dropped);
}

}  // namespace
}  // namespace isthmus::test
