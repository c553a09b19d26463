#include <gtest/gtest.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <limits>
#include <numeric>
#include <random>
#include <string>
#include <vector>

#include "isthmus/error.h"
#include "tests/cpp/codec/pieces.h"
#include "tests/cpp/codec/quant/quant_packets.h"
#include "tests/cpp/support/instruction_sets.h"

namespace isthmus {
namespace {

constexpr float kNan = std::numeric_limits<float>::quiet_NaN();
constexpr float kInfinity = std::numeric_limits<float>::infinity();
constexpr float kMax = std::numeric_limits<float>::max();

// Which NaN it is says nothing.
std::vector<uint32_t> bits_but_nan_of(const std::vector<float>& values) {
  std::vector<uint32_t> bits;
  for (const float value : values) {
    bits.push_back(std::bit_cast<uint32_t>(std::isnan(value) ? kNan : value));
  }
  return bits;
}

// Two steps against the reference: packets, residuals, counts and what arrives, bit for bit.
void expect_equal_to_reference(const Options& options, const std::vector<std::vector<float>>& pieces) {
  SCOPED_TRACE(testing::Message() << pieces[0].size() << " elements, " << options.bits << " bits, groups of "
                                  << options.group_elements << ", rotate " << options.rotate << ", " << options.scale
                                  << ", " << options.scale_type << ", " << options.rounding << ", feedback "
                                  << options.error_feedback);
  QuantCodec codec(options);
  std::vector<float> residual(codec.keeps_residual() ? pieces[0].size() : 0);
  std::vector<float> expected_residual = residual;
  for (uint64_t step = 0; step < pieces.size(); ++step) {
    const PacketContext context = {
        .unit_hash = kContext.unit_hash, .step = step, .sender = static_cast<uint16_t>(3 * step)};
    CodecCounts counts;
    Packet packet = encoded(codec, pieces[step], residual, context, &counts);
    const reference::QuantResult expected =
        reference::encode_quant(parameters_of(options, context), pieces[step], expected_residual);
    ASSERT_EQ(packet.copy(), expected.packet);
    ASSERT_EQ(bits_but_nan_of(residual), bits_but_nan_of(expected_residual));
    const auto num_elements = static_cast<int64_t>(pieces[step].size());
    EXPECT_EQ(counts.encoded_elements, num_elements);
    EXPECT_EQ(counts.kept_elements, num_elements);
    EXPECT_EQ(counts.non_finite_blocks, expected.non_finite_groups);
    std::vector<float> out(pieces[step].size(), 3.0F);
    codec.decode_sum(packet.buffer(), 1, buffer_of(out), context, {});
    std::vector<float> sum;
    for (const float value : expected.arrives) {
      sum.push_back(3.0F + value);
    }
    ASSERT_EQ(bits_but_nan_of(out), bits_but_nan_of(sum));
  }
}

void expect_equal_to_reference(const Options& options, Data data, int64_t num_elements) {
  SCOPED_TRACE(to_string(data));
  expect_equal_to_reference(options, {make_piece(data, num_elements, 11), make_piece(data, num_elements, 12)});
}

constexpr int64_t kSizes[] = {0,   1,   31,  32,  33,  127,  128,  129,  255,  257,
                              500, 511, 512, 513, 639, 1024, 1025, 8191, 8192, 8200};

TEST(Quant, EqualsReferenceAtAllWidthsSizesAndGroups) {
  for (const int bits : kWidths) {
    for (const bool rotate : {false, true}) {
      for (const int64_t num_elements : kSizes) {
        expect_equal_to_reference(options_of(bits, rotate), Data::kHeavyTail, num_elements);
      }
      for (int64_t group = 32; group <= 512; group *= 2) {
        expect_equal_to_reference(options_of(bits, rotate, group), Data::kHeavyTail, 3 * 512 + group + 1);
        expect_equal_to_reference(with_feedback(options_of(bits, rotate, group)), Data::kHeavyTail, 1024 - group);
      }
    }
  }
}

// Every setting on every kind of data.
void expect_all_settings_equal_to_reference(int64_t num_elements) {
  for (const int bits : kWidths) {
    for (const bool rotate : {false, true}) {
      for (const std::string& scale : kScales) {
        for (const Data data : all_data()) {
          Options options = options_of(bits, rotate, 64, scale);
          expect_equal_to_reference(with_feedback(options), data, num_elements);
          options.scale_type = "fp32";
          expect_equal_to_reference(with_noise(options), data, num_elements);
          expect_equal_to_reference(with_feedback(with_noise(options)), data, num_elements);
        }
      }
    }
  }
}

TEST(Quant, EqualsReferenceInAllSettingsAndOnDifficultData) { expect_all_settings_equal_to_reference(1000); }

TEST(Quant, AllInstructionSetsGiveTheSameBits) {
  in_every_instruction_set([] {
    expect_all_settings_equal_to_reference(700);
    for (int64_t group = 32; group <= 512; group *= 2) {
      for (const bool rotate : {false, true}) {
        expect_equal_to_reference(options_of(4, rotate, group), Data::kHeavyTail, 20001);
      }
    }
  });
}

// One huge element, magnitudes next to where groups are multiplied by a power of two first, and ties between levels.
TEST(Quant, EqualsReferenceAtTheEdgesOfRanges) {
  const int64_t num_elements = 256;
  std::vector<std::vector<float>> pieces;
  for (const float magnitude : {0x1p-50F, 0x1p-49F, 0x1p-48F, 0x1p-45F, 0x1p38F, 0x1p41F, 0x1p45F, 0x1p126F, 1e-40F}) {
    std::vector<float> piece = make_piece(Data::kFewDistinct, num_elements, 3);
    for (float& value : piece) {
      value *= magnitude / 4;
    }
    pieces.push_back(piece);
  }
  for (const float outlier : {kMax, -kMax, 1e30F, -1e-30F, std::numeric_limits<float>::denorm_min()}) {
    std::vector<float> piece = make_piece(Data::kHeavyTail, num_elements, 4);
    piece[130] = outlier;
    pieces.push_back(piece);
    pieces.emplace_back(num_elements);
    pieces.back()[5] = outlier;
    pieces.emplace_back(num_elements, outlier);
  }
  for (const int bits : kWidths) {
    for (const bool rotate : {false, true}) {
      for (const std::string& scale : kScales) {
        const Options options = options_of(bits, rotate, 128, scale);
        expect_equal_to_reference(options, pieces);
        expect_equal_to_reference(with_feedback(options), pieces);
        expect_equal_to_reference(with_feedback(with_noise(options)), pieces);
      }
    }
  }
}

TEST(Quant, FiniteElementsArriveFinite) {
  for (const int bits : kWidths) {
    for (const bool rotate : {false, true}) {
      for (const std::string& scale : kScales) {
        for (const Data data : {Data::kHuge, Data::kAllEqual}) {
          std::vector<float> piece = make_piece(data, 1024, 5);
          std::replace(piece.begin(), piece.end(), -2.5F, kMax);
          QuantCodec codec(with_feedback(options_of(bits, rotate, 128, scale)));
          std::vector<float> residual(piece.size());
          Packet packet = encoded(codec, piece, residual);
          for (const float value : decoded(codec, packet, piece.size())) {
            ASSERT_TRUE(std::isfinite(value));
          }
          for (const float value : residual) {
            ASSERT_TRUE(std::isfinite(value));
          }
        }
      }
    }
  }
}

TEST(Quant, NonFiniteGroupsArriveAsNanAndKeepTheirResidual) {
  const int64_t num_elements = 128 * 9 + 100;
  const int64_t tail = 128 * 9;
  for (const bool rotate : {false, true}) {
    QuantCodec codec(with_feedback(options_of(2, rotate)));
    std::vector<float> piece = make_piece(Data::kHeavyTail, num_elements, 6);
    std::vector<float> residual = make_piece(Data::kHeavyTail, num_elements, 7);
    piece[130] = kNan;
    piece[131] = -kInfinity;
    piece[600] = kInfinity;
    piece[1151] = residual[1151] = kMax;  // their sum is Inf
    piece[tail + 7] = -kInfinity;
    piece[tail + 8] = kNan;
    const std::vector<float> old_residual = residual;
    CodecCounts counts;
    Packet packet = encoded(codec, piece, residual, kContext, &counts);
    EXPECT_EQ(counts.non_finite_blocks, 4);
    const std::vector<float> out = decoded(codec, packet, num_elements);
    for (int64_t i = 0; i < tail; ++i) {
      const int64_t group = i / 128;
      const bool broken = group == 1 || group == 4 || group == 8;
      ASSERT_EQ(std::isnan(out[i]), broken) << i;
      ASSERT_EQ(residual[i] == old_residual[i], broken) << i;
    }
    for (int64_t i = tail; i < num_elements; ++i) {
      const float sum = piece[i] + old_residual[i];
      if (std::isfinite(sum)) {
        ASSERT_EQ(out[i], sum) << i;
        ASSERT_EQ(residual[i], 0) << i;
      } else {
        ASSERT_EQ(std::isnan(out[i]), std::isnan(sum)) << i;
        ASSERT_EQ(residual[i], old_residual[i]) << i;
      }
    }
    EXPECT_EQ(out[tail + 7], -kInfinity);
  }
}

TEST(Quant, ExactWhereItSaysSo) {
  for (const int bits : kWidths) {
    // Pieces smaller than a group, and tails.
    const std::vector<float> piece = make_piece(Data::kHuge, 511, 8);
    EXPECT_EQ(sent(options_of(bits, true, 512), piece), piece);
    const std::vector<float> of_two_groups = make_piece(Data::kHeavyTail, 127, 8);
    const std::vector<float> out = sent(options_of(bits, true, 64), of_two_groups);
    EXPECT_TRUE(std::equal(out.begin() + 64, out.end(), of_two_groups.begin() + 64));
    // Zeros stay zeros, and with a level for it so do those among other values.
    EXPECT_EQ(sent(options_of(bits), std::vector<float>(1024, -0.0F)), std::vector<float>(1024));
    EXPECT_EQ(sent(with_noise(options_of(bits)), std::vector<float>(1024)), std::vector<float>(1024));
    if (bits > 1) {
      std::vector<float> one(256);
      one[200] = -1.75F;
      std::vector<float> arrived = sent(options_of(bits, false), one);
      EXPECT_NEAR(arrived[200], one[200], .004 * 1.75);  // its scale is rounded to bfloat16
      arrived[200] = one[200];
      EXPECT_EQ(arrived, one);
    }
  }
  // Levels of absmax arrive as they are.
  std::vector<float> levels;
  for (int i = 0; i < 128; ++i) {
    levels.push_back(static_cast<float>(i % 15 - 7) * .25F);
  }
  EXPECT_EQ(sent(options_of(4, false, 128, "absmax"), levels), levels);
}

TEST(Quant, AddsSeveralPacketsInTheirOrder) {
  const int64_t num_elements = 40007;  // several tiles
  QuantCodec codec(options_of(3));
  const int64_t packet_bytes = codec.packet_bytes(num_elements);
  Packet packets(3 * packet_bytes);
  std::vector<float> expected(num_elements, 100.0F);
  for (int p = 0; p < 3; ++p) {
    const std::vector<float> piece = make_piece(Data::kHeavyTail, num_elements, 20 + p);
    codec.encode(buffer_of(piece), {}, packets.buffer().part(p, packet_bytes), kContext.of_packet(p), {});
    const std::vector<float> arrived = sent(options_of(3), piece, kContext.of_packet(p));
    std::transform(expected.begin(), expected.end(), arrived.begin(), expected.begin(), std::plus<>());
  }
  std::vector<float> out(num_elements, 100.0F);
  codec.decode_sum(packets.buffer(), 3, buffer_of(out), kContext, {});
  EXPECT_EQ(out, expected);
}

TEST(Quant, PacketSizeIsScalesCodesAndTail) {
  EXPECT_EQ(QuantCodec(options_of(4)).packet_bytes(0), 64);
  EXPECT_EQ(QuantCodec(options_of(4)).packet_bytes(int64_t{1} << 20), 64 + 8192 * 2 + (1 << 19));
  Options options = options_of(3, true, 32);
  options.scale_type = "fp32";
  EXPECT_EQ(QuantCodec(options).packet_bytes(512 + 32 + 31), 64 + 128 + 2 * 192 + 128);
  for (const int64_t size : kSizes) {
    EXPECT_EQ(QuantCodec(options).packet_bytes(size) % 64, 0);
  }
}

TEST(Quant, RefusesDamage) {
  const int64_t num_elements = 2000;
  for (const int bits : {1, 4}) {
    QuantCodec codec(options_of(bits));
    std::vector<float> none;
    Packet packet = encoded(codec, make_piece(Data::kHeavyTail, num_elements, 16), none);
    for (int64_t byte = 0; byte < packet.bytes; ++byte) {
      packet.data()[byte] ^= 0x10;
      ASSERT_THROW(decoded(codec, packet, num_elements), PacketError) << byte;
      packet.data()[byte] ^= 0x10;
    }
    EXPECT_NO_THROW(decoded(codec, packet, num_elements));
  }
}

TEST(Quant, NamesWhatDiffers) {
  const std::vector<float> piece = make_piece(Data::kHeavyTail, 1000, 17);
  const auto message_of = [&](const Options& sender, const Options& receiver, PacketContext context) {
    QuantCodec encoder(sender);
    QuantCodec decoder(receiver);
    std::vector<float> none;
    Packet packet = encoded(encoder, piece, none, kContext);
    try {
      decoded(decoder, packet, piece.size(), context);
    } catch (const PacketError& error) {
      return std::string(error.what());
    }
    return std::string("accepted");
  };
  EXPECT_EQ(message_of(options_of(4), options_of(4), kContext), "accepted");
  EXPECT_NE(message_of(options_of(4), options_of(4), {kContext.unit_hash, 8, 2, 5}).find("step 7"), std::string::npos);
  EXPECT_NE(message_of(options_of(4), options_of(4), {kContext.unit_hash, 7, 3, 5}).find("segment 2"),
            std::string::npos);
  const Options variants[] = {options_of(4, false), options_of(4, true, 128, "unbiased"), with_noise(options_of(4))};
  for (const Options& other : variants) {  // packets of the same size
    EXPECT_NE(message_of(options_of(4), other, kContext).find("settings"), std::string::npos);
    EXPECT_NE(message_of(other, options_of(4), kContext).find("settings"), std::string::npos);
  }
}

TEST(Quant, RefusesWrongOptionsAndBuffers) {
  EXPECT_THROW(QuantCodec(options_of(0)), OptionError);
  EXPECT_THROW(QuantCodec(options_of(5)), OptionError);
  EXPECT_THROW(QuantCodec(options_of(4, true, 16)), OptionError);
  EXPECT_THROW(QuantCodec(options_of(4, true, 96)), OptionError);
  EXPECT_THROW(QuantCodec(options_of(4, true, 128, "best")), OptionError);

  std::vector<float> values(200);
  QuantCodec plain(options_of(4));
  QuantCodec feedback(with_feedback(options_of(4)));
  Packet packet(plain.packet_bytes(200));
  EXPECT_FALSE(plain.keeps_residual());
  EXPECT_TRUE(feedback.keeps_residual());
  const ConstBuffer bytes = {values.data(), 200, DataType::kBFloat16};
  EXPECT_THROW(plain.encode(bytes, {}, packet.buffer(), kContext, {}), Error);
  EXPECT_THROW(plain.encode(buffer_of(values), buffer_of(values), packet.buffer(), kContext, {}), Error);
  EXPECT_THROW(feedback.encode(buffer_of(values), {}, packet.buffer(), kContext, {}), Error);
  EXPECT_THROW(plain.encode(buffer_of(values), {}, packet.buffer().slice(0, 64), kContext, {}), Error);
  plain.encode(buffer_of(values), {}, packet.buffer(), kContext, {});
  EXPECT_THROW(plain.decode_sum(packet.buffer(), 2, buffer_of(values), kContext, {}), Error);
  const Buffer halves = {values.data(), 200, DataType::kBFloat16};
  EXPECT_THROW(plain.decode_sum(packet.buffer(), 1, halves, kContext, {}), Error);
}

TEST(Quant, MakeCodecKnowsIt) {
  const auto codec = make_codec("quant", with_feedback(options_of(2)), DataType::kBFloat16, 4);
  EXPECT_STREQ(codec->name(), "quant");
  EXPECT_TRUE(codec->keeps_residual());
}

}  // namespace
}  // namespace isthmus
