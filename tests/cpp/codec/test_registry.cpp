// The registry of codecs, with one from outside: it is written here against the public headers, registered, and reduced
// with.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "isthmus/codec_type.h"
#include "isthmus/error.h"
#include "isthmus/packet_header.h"
#include "tests/cpp/codec/pieces.h"
#include "tests/cpp/emulated/emulated_gpu.h"
#include "tests/cpp/support/error_of.h"
#include "tests/cpp/support/packets.h"
#include "tests/cpp/support/world.h"

namespace isthmus::test {
namespace {

constexpr auto kSignId = static_cast<CodecId>(200);

// Sends each element's sign, and the mean magnitude of all; with error feedback. Packet: header, magnitude, bits.
class SignCodec final : public HostCodec {
 public:
  explicit SignCodec(const Options& options) : keeps_residual_(options.error_feedback != ErrorFeedback::kOff) {}

  const char* name() const override { return "sign"; }
  int64_t packet_bytes(int64_t num_elements) const override { return kBits + (num_elements + 63) / 64 * 8; }
  bool keeps_residual() const override { return keeps_residual_; }

  CodecCounts encode(ConstBuffer piece, Buffer residual, Buffer packet, PacketContext context,
                     Workspace /*workspace*/) override {
    const auto num_elements = static_cast<size_t>(piece.num_elements);
    std::vector<float> values(piece.as<float>(), piece.as<float>() + num_elements);
    float magnitudes = 0;
    for (size_t i = 0; i < num_elements; ++i) {
      values[i] += keeps_residual_ ? residual.as<float>()[i] : 0;
      magnitudes += std::fabs(values[i]);
    }
    const float magnitude = num_elements == 0 ? 0 : magnitudes / static_cast<float>(num_elements);
    auto* bytes = packet.as<std::byte>();
    std::fill_n(bytes, packet.num_elements, std::byte{0});
    const PacketHeader header = header_of(piece.num_elements, context);
    std::memcpy(bytes, &header, sizeof(header));
    std::memcpy(bytes + sizeof(header), &magnitude, sizeof(magnitude));
    for (size_t i = 0; i < num_elements; ++i) {
      const bool is_negative = std::signbit(values[i]);
      bytes[kBits + i / 8] |= std::byte{is_negative} << i % 8;
      if (keeps_residual_) {
        residual.as<float>()[i] = values[i] - (is_negative ? -magnitude : magnitude);
      }
    }
    CodecCounts counts;
    counts.encoded_elements = counts.kept_elements = piece.num_elements;
    return counts;
  }

  CodecCounts decode_sum(ConstBuffer packets, int num_packets, Buffer out, PacketContext context,
                         Workspace /*workspace*/) override {
    for (int p = 0; p < num_packets; ++p) {
      const auto* bytes = packets.part(p, packet_bytes(out.num_elements)).as<std::byte>();
      read_header(bytes, header_of(out.num_elements, context.of_packet(p)));
      float magnitude = 0;
      std::memcpy(&magnitude, bytes + sizeof(PacketHeader), sizeof(magnitude));
      for (int64_t i = 0; i < out.num_elements; ++i) {
        const bool is_negative = (bytes[kBits + i / 8] >> i % 8 & std::byte{1}) != std::byte{0};
        out.as<float>()[i] += is_negative ? -magnitude : magnitude;
      }
    }
    return {};
  }

 private:
  static constexpr int64_t kBits = sizeof(PacketHeader) + 8;

  static PacketHeader header_of(int64_t num_elements, PacketContext context) {
    return make_header(kSignId, DataType::kFloat32, num_elements, /*settings=*/0, context);
  }

  bool keeps_residual_;
};

CodecType sign_type() {
  return {.id = kSignId,
          .name = "sign",
          .options = {{.field = {.name = "error_feedback"}}},
          .make_on_host = [](const Options& options, DataType, int) -> std::unique_ptr<HostCodec> {
            return std::make_unique<SignCodec>(options);
          }};
}

const CodecType kSign = sign_type();
[[maybe_unused]] const bool kIsRegistered = (register_codec(kSign), true);  // before anything asks for codecs

Options sign_options() { return options_of_codec("sign"); }

std::vector<OptionField>::const_iterator field_named(const std::string& name) {
  return std::ranges::find_if(option_fields(), [&](const OptionField& field) { return name == field.name; });
}

TEST(Registry, HasTheCodecsOfIsthmusAndThoseFromOutside) {
  EXPECT_EQ(codec_names(), (std::vector<std::string>{"none", "tagc", "quant", "sign"}));
  EXPECT_EQ(&find_codec("sign"), &kSign);
  EXPECT_STREQ(to_string(kSignId), "sign");
  EXPECT_STREQ(to_string(CodecId::kTagc), "tagc");
  EXPECT_STREQ(to_string(CodecId{77}), "unknown");
}

TEST(Registry, UnknownNamesListTheKnownOnes) {
  EXPECT_EQ(error_of<OptionError>([] { make_codec("zip", Options(), DataType::kFloat32, 1); }),
            "codec \"zip\" is unknown: expected none, tagc, quant or sign");
  Options options;
  EXPECT_EQ(error_of<OptionError>([&] { field_named("codec")->set(options, "zip"); }),
            "option codec=\"zip\": expected none, tagc, quant or sign");
}

TEST(Registry, OptionsKnowTheirUsers) {
  Options options = sign_options();
  EXPECT_NO_THROW(options.validate());
  EXPECT_EQ(field_named("error_feedback")->users_text(), "tagc, quant or sign");
  EXPECT_EQ(field_named("dense_steps")->users_text(), "tagc, quant or sign");
  EXPECT_EQ(field_named("sparsity")->users_text(), "tagc");
  EXPECT_EQ(field_named("segments")->users_text(), "");
  EXPECT_TRUE(options.uses(*field_named("error_feedback")));
  EXPECT_FALSE(options.uses(*field_named("bits")));
  EXPECT_EQ(options.codec_settings(), "sign error_feedback=codec");
}

TEST(Registry, EveryCodecIsComplete) {
  for (const CodecType* type : codec_types()) {
    const Options options = options_of_codec(type->name);
    const std::unique_ptr<HostCodec> codec = make_codec(type->name, options, DataType::kFloat32, 2);
    EXPECT_STREQ(codec->name(), type->name);
    EXPECT_STREQ(to_string(type->id), type->name) << "two codecs with one id";
    for (const CodecOption& option : type->options) {
      EXPECT_NE(field_named(option.field.name), option_fields().end()) << type->name << ": " << option.field.name;
    }
  }
}

TEST(Registry, RefusesTakenNamesAndMissingFunctions) {
  static CodecType other;  // would have to outlive the test
  const auto refusal = [](const std::function<void(CodecType&)>& change) {
    other = sign_type();
    other.name = "other";
    other.id = static_cast<CodecId>(201);
    change(other);
    return error_of<OptionError>([] { register_codec(other); });
  };
  EXPECT_EQ(refusal([](CodecType& type) { type.name = "quant"; }), "codec quant is registered already");
  EXPECT_EQ(refusal([](CodecType& type) { type.name = "sign"; }), "codec sign is registered already");
  EXPECT_EQ(refusal([](CodecType& type) { type.name = nullptr; }), "codec \"\": that is no name of a codec");
  EXPECT_EQ(refusal([](CodecType& type) { type.id = kSignId; }), "codec other: id 200 is that of codec sign");
  EXPECT_EQ(refusal([](CodecType& type) { type.id = CodecId::kQuant; }), "codec other: id 3 is not from 128 to 255");
  EXPECT_EQ(refusal([](CodecType& type) { type.make_on_host = nullptr; }), "codec other: needs make_on_host");
  codec_types();
  EXPECT_EQ(refusal([](CodecType&) {}),
            "codec other is registered too late: codecs are registered before anything else of Isthmus is used");
}

TEST(Registry, WhatRunsOnTheCpuAloneSaysSo) {
  EmulatedGpu gpu;
  EXPECT_EQ(error_of<OptionError>([&] { gpu.make_codec("sign", sign_options(), DataType::kFloat32, 1); }),
            "codec \"sign\" runs on the CPU alone");
}

// With error feedback, the mean over steps of one gradient tends to it.
TEST(Registry, ReducesOverTwoNodes) {
  constexpr int kSteps = 300;
  World world(NodeMap::parse("2x2", 4), sign_options());
  const std::vector<Array> gradients = random_inputs(4, 500, DataType::kFloat32);
  const std::vector<double> sum = sum_of(gradients);
  std::vector<double> mean(sum.size());
  for (int step = 0; step < kSteps; ++step) {
    std::ranges::transform(mean, world.reduce_scatter(gradients, 1.0 / kSteps, {}), mean.begin(), std::plus<>());
  }
  EXPECT_LT(relative_error(sum, mean), .01);
  EXPECT_EQ(world.ranks[0]->stats().compressed_calls, kSteps);
}

// The codecs of Isthmus on the CPU: the one above has no checksum.
class EveryHostCodec : public ::testing::TestWithParam<const char*> {
 protected:
  static constexpr int64_t kElements = 1101;
  static constexpr PacketContext kContext = {.unit_hash = 7, .step = 3, .sender = 2};

  const std::unique_ptr<HostCodec> codec_ = make_codec(GetParam(), Options(), DataType::kFloat32, 2);
  std::vector<float> piece_ = make_piece(Data::kHeavyTail, kElements, 14);
  std::vector<float> residual_ = std::vector<float>(codec_->keeps_residual() ? kElements : 0);
  Packet packet_ = new_packet(*codec_, kElements);
};
INSTANTIATE_TEST_SUITE_P(Codecs, EveryHostCodec, ::testing::Values("none", "quant", "tagc"),
                         [](const auto& parameter) { return parameter.param; });

TEST_P(EveryHostCodec, FindsEveryFlippedBit) {
  piece_[200] = kNan;
  encode(*codec_, piece_, residual_, packet_, kContext);
  EXPECT_NO_THROW(decode(*codec_, packet_, kElements, kContext));
  for (int64_t bit = 0; bit < 8 * packet_.bytes; ++bit) {
    packet_.data()[bit / 8] ^= static_cast<uint8_t>(1 << bit % 8);
    EXPECT_THROW(decode(*codec_, packet_, kElements, kContext), PacketError) << "bit " << bit;
    packet_.data()[bit / 8] ^= static_cast<uint8_t>(1 << bit % 8);
  }
}

TEST_P(EveryHostCodec, RefusesWrongBuffers) {
  const Buffer packet = packet_.buffer();
  const Buffer shorter = packet.slice(0, packet.bytes() - 8);
  const std::vector<double> doubles(kElements);
  const ConstBuffer of_another_type = {doubles.data(), kElements, DataType::kFloat64};
  if (GetParam() != std::string("none")) {  // which takes any type
    EXPECT_THROW(codec_->encode(of_another_type, buffer_of(residual_), packet, kContext, {}), Error);
  }
  EXPECT_THROW(codec_->encode(buffer_of(piece_), buffer_of(residual_), shorter, kContext, {}), Error);
  EXPECT_THROW(codec_->decode_sum(packet, 2, buffer_of(piece_), kContext, {}), Error);
  EXPECT_THROW(codec_->decode_sum(shorter, 1, buffer_of(piece_), kContext, {}), Error);
  if (codec_->keeps_residual()) {
    EXPECT_THROW(codec_->encode(buffer_of(piece_), {}, packet, kContext, {}), Error);
    residual_.pop_back();
    EXPECT_THROW(codec_->encode(buffer_of(piece_), buffer_of(residual_), packet, kContext, {}), Error);
  }
}

}  // namespace
}  // namespace isthmus::test
