// What all codecs of a device share, on an emulated GPU: packets of segments, and what they refuse.
#include <gtest/gtest.h>

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "base/aligned_memory.h"
#include "isthmus/codec_type.h"
#include "isthmus/error.h"
#include "kernels/block/device.h"
#include "tests/cpp/emulated/emulated_gpu.h"
#include "tests/cpp/support/typed_data.h"

namespace isthmus {
namespace {

using test::Array;
using test::EmulatedGpu;
using test::random_values;

constexpr int64_t kElements = 5000;
constexpr PacketContext kContext = {.unit_hash = 0xfedcba9876543210, .step = 7, .segment = 3, .sender = 258};

class DeviceCodec : public ::testing::TestWithParam<std::string> {
 protected:
  Buffer allocate(int64_t num_elements, DataType dtype) {
    memory_.push_back(gpu_.allocate(num_elements * element_bytes(dtype)));
    const Buffer buffer = {memory_.back().get(), num_elements, dtype};
    gpu_.clear(buffer, stream_);
    return buffer;
  }
  Workspace workspace(int64_t scratch_bytes) { return {stream_, allocate(scratch_bytes, DataType::kByte)}; }

  // Codec `none` takes unit and step with the call; test_device_batches.cpp has them on the device for all codecs.
  PacketContext on_device(PacketContext context) {
    if (GetParam() == "none") {
      return context;
    }
    auto* memory = allocate(sizeof(kernels::DeviceContext), DataType::kByte).as<kernels::DeviceContext>();
    gpu_.set_context(memory, context, stream_);
    return {.segment = context.segment, .sender = context.sender, .on_device = memory};
  }

  Buffer encode(PacketContext context) {
    const Buffer piece = allocate(kElements, DataType::kFloat32);
    gpu_.write(piece_.view(), piece);
    const Buffer residual = allocate(codec_->keeps_residual() ? kElements : 0, DataType::kFloat32);
    const Buffer packet = allocate(codec_->packet_bytes(kElements), DataType::kByte);
    const PieceSet set = PieceSet::of_one(piece, residual, packet);
    codec_->encode_pieces(set, on_device(context), workspace(codec_->encode_scratch_bytes(set)));
    return packet;
  }

  std::vector<std::byte> encode_on_cpu(PacketContext context) {
    const std::unique_ptr<HostCodec> codec = make_codec(GetParam(), options_, DataType::kFloat32, 2);
    Array residual(codec->keeps_residual() ? kElements : 0, DataType::kFloat32);
    const int64_t num_bytes = codec->packet_bytes(kElements);
    const AlignedMemory packet = allocate_aligned(num_bytes);
    codec->encode(piece_.view(), residual.buffer(), {packet.get(), num_bytes, DataType::kByte}, context, {});
    return {packet.get(), packet.get() + num_bytes};
  }

  std::vector<std::byte> bytes_of(Buffer buffer) {
    std::vector<std::byte> bytes(static_cast<size_t>(buffer.bytes()));
    gpu_.read({buffer.data, buffer.bytes(), DataType::kByte}, {bytes.data(), buffer.bytes(), DataType::kByte});
    return bytes;
  }

  // "" where decoding finds nothing wrong.
  std::string complaint_of_decoding(Buffer packet, PacketContext context) {
    codec_->decode_each(packet, 1, allocate(kElements, DataType::kFloat32), on_device(context),
                        workspace(codec_->decode_each_scratch_bytes(kElements, 1)));
    gpu_.synchronize();
    try {
      gpu_.throw_if_faulted();
    } catch (const PacketError& error) {
      return error.what();
    }
    return "";
  }

  EmulatedGpu gpu_;
  const Stream stream_ = gpu_.lane(Lane::kEncode);
  const Options options_;
  const std::unique_ptr<Codec> codec_ = gpu_.make_codec(GetParam(), options_, DataType::kFloat32, 2);
  const Array piece_{random_values(kElements, 1), DataType::kFloat32};
  std::vector<DeviceMemory> memory_;
};
INSTANTIATE_TEST_SUITE_P(Codecs, DeviceCodec, ::testing::ValuesIn(codec_names()),
                         [](const auto& parameter) { return parameter.param; });

TEST_P(DeviceCodec, PacketsNameTheirSegmentAndSender) {
  const Buffer packet = encode(kContext);
  EXPECT_TRUE(bytes_of(packet) == encode_on_cpu(kContext));
  EXPECT_EQ(complaint_of_decoding(packet, kContext), "");
}

TEST_P(DeviceCodec, PacketsOfAnotherStepAreRefused) {
  PacketContext other = kContext;
  other.step = 8;
  const std::string complaint = complaint_of_decoding(encode(kContext), other);
  EXPECT_NE(complaint.find("step 7 where 8 is expected"), std::string::npos) << complaint;
}

TEST_P(DeviceCodec, PacketsOfAnotherSegmentAreRefused) {
  PacketContext other = kContext;
  other.segment = 200;
  const std::string complaint = complaint_of_decoding(encode(kContext), other);
  EXPECT_NE(complaint.find("segment 3 where 200 is expected"), std::string::npos) << complaint;
}

TEST_P(DeviceCodec, PacketsOfAnotherNodeAreRefused) {
  PacketContext other = kContext;
  other.sender = 3;
  const std::string complaint = complaint_of_decoding(encode(kContext), other);
  EXPECT_NE(complaint.find("sending node 258 where 3 is expected"), std::string::npos) << complaint;
}

TEST_P(DeviceCodec, RefusesInvalidArguments) {
  const Buffer packet = encode(kContext);
  const Buffer out = allocate(kElements, DataType::kFloat32);
  const Workspace scratch = workspace(codec_->decode_each_scratch_bytes(kElements, 2));
  if (GetParam() != "none") {
    EXPECT_THROW(codec_->decode_each(packet, 1, out, kContext, scratch), Error) << "no unit and step on the device";
  }
  EXPECT_THROW(codec_->decode_each(packet, 2, out, on_device(kContext), scratch), Error);
  EXPECT_THROW(codec_->decode_each(packet, 3, out, on_device(kContext), scratch), Error);
  EXPECT_THROW(codec_->decode_each(packet, 0, out, on_device(kContext), scratch), Error);
  EXPECT_THROW(codec_->decode_each(packet, 1, out, on_device(kContext), {stream_, {}}), Error);
}

}  // namespace
}  // namespace isthmus
