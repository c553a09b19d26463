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
  SCOPED_TRACE(testing::Message() << pieces[0].size() << " elements, " << options.bits << " bits, feedback "
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

// Around groups, blocks and tiles.
constexpr int64_t kSizes[] = {0,   1,   31,  127, 128, 129,  255,  256,  257,  383,  384, 385,
                              500, 511, 512, 513, 639, 1024, 1025, 1153, 8191, 8192, 8200};

TEST(Quant, EqualsReferenceAtAllWidthsAndSizes) {
  for (const int bits : kWidths) {
    for (const int64_t num_elements : kSizes) {
      expect_equal_to_reference(options_of(bits), Data::kHeavyTail, num_elements);
      expect_equal_to_reference(with_feedback(options_of(bits)), Data::kHeavyTail, num_elements);
    }
  }
}

// Every setting on every kind of data.
void expect_all_settings_equal_to_reference(int64_t num_elements) {
  for (const int bits : kWidths) {
    for (const Data data : all_data()) {
      expect_equal_to_reference(options_of(bits), data, num_elements);
      expect_equal_to_reference(with_feedback(options_of(bits)), data, num_elements);
    }
  }
}

TEST(Quant, EqualsReferenceInAllSettingsAndOnDifficultData) { expect_all_settings_equal_to_reference(1000); }

TEST(Quant, AllInstructionSetsGiveTheSameBits) {
  in_every_instruction_set([] {
    expect_all_settings_equal_to_reference(700);
    expect_equal_to_reference(options_of(4), Data::kHeavyTail, 20001);
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
    expect_equal_to_reference(options_of(bits), pieces);
    expect_equal_to_reference(with_feedback(options_of(bits)), pieces);
  }
}

TEST(Quant, FiniteElementsArriveFinite) {
  for (const int bits : kWidths) {
    for (const Data data : {Data::kHuge, Data::kAllEqual}) {
      std::vector<float> piece = make_piece(data, 1024, 5);
      std::replace(piece.begin(), piece.end(), -2.5F, kMax);
      QuantCodec codec(with_feedback(options_of(bits)));
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

TEST(Quant, NonFiniteGroupsArriveAsNanAndKeepTheirResidual) {
  const int64_t num_elements = 128 * 9 + 100;
  const int64_t tail = 128 * 9;
  QuantCodec codec(with_feedback(options_of(2)));
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

TEST(Quant, ExactWhereItSaysSo) {
  for (const int bits : kWidths) {
    // Pieces smaller than a group, and tails.
    const std::vector<float> piece = make_piece(Data::kHuge, 127, 8);
    EXPECT_EQ(sent(options_of(bits), piece), piece);
    const std::vector<float> of_two_groups = make_piece(Data::kHeavyTail, 255, 8);
    const std::vector<float> out = sent(options_of(bits), of_two_groups);
    EXPECT_TRUE(std::equal(out.begin() + 128, out.end(), of_two_groups.begin() + 128));
    EXPECT_EQ(sent(options_of(bits), std::vector<float>(1024, -0.0F)), std::vector<float>(1024));
  }
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
  EXPECT_EQ(QuantCodec(options_of(3)).packet_bytes(512 + 128 + 31), 64 + 64 + 2 * 192 + 128);
  for (const int64_t size : kSizes) {
    EXPECT_EQ(QuantCodec(options_of(3)).packet_bytes(size) % 64, 0);
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
}

// Each bit of the settings, of codes that are made in another way, too.
TEST(Quant, RefusesOtherSettings) {
  QuantCodec codec(options_of(4));
  std::vector<float> none;
  Packet packet = encoded(codec, make_piece(Data::kHeavyTail, 1000, 17), none);
  for (int bit = 0; bit < 64; ++bit) {
    const auto flip = [&] { packet.data()[32 + bit / 8] ^= 1 << bit % 8; };
    flip();
    try {
      decoded(codec, packet, 1000);
      ADD_FAILURE() << "accepted without bit " << bit;
    } catch (const PacketError& error) {
      EXPECT_NE(std::string(error.what()).find("settings"), std::string::npos) << error.what();
    }
    flip();
  }
}

TEST(Quant, RefusesWrongOptionsAndBuffers) {
  EXPECT_THROW(QuantCodec(options_of(0)), OptionError);
  EXPECT_THROW(QuantCodec(options_of(5)), OptionError);

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
