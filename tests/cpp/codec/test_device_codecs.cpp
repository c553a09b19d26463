// What codecs of a device refuse. What they compute is the subject of tests/gpu/checks.
#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "isthmus/codec_type.h"
#include "isthmus/error.h"
#include "kernels/block/device.h"
#include "tests/cpp/emulated/emulated_gpu.h"

namespace isthmus {
namespace {

using test::EmulatedGpu;

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

}  // namespace
}  // namespace isthmus
