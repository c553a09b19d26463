// What codec tagc does with what is not a number, and what it refuses: damaged and forged packets, wrong buffers and
// options.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <limits>
#include <random>
#include <set>
#include <string>
#include <vector>

#include "isthmus/error.h"
#include "tests/cpp/codec/pieces.h"
#include "tests/cpp/codec/tagc/tagc_packets.h"
#include "tests/cpp/codec/tagc/tagc_reference.h"
#include "tests/cpp/support/error_of.h"

namespace isthmus {
namespace {

constexpr float kNan = std::numeric_limits<float>::quiet_NaN();
constexpr float kInfinity = std::numeric_limits<float>::infinity();
constexpr float kMax = std::numeric_limits<float>::max();

TEST(Tagc, NonFiniteBlocksArriveAsNanAndKeepTheirResidual) {
  const int64_t num_elements = 5000;
  constexpr TagcLimits kLimits = {.block_elements = 256};
  TagcCodec codec(options_of({4, .9}), kLimits);
  std::vector<float> piece = make_piece(Data::kHeavyTail, num_elements, 6);
  std::vector<float> residual = make_piece(Data::kHeavyTail, num_elements, 7);
  piece[300] = kNan;
  piece[301] = -kInfinity;
  piece[1024] = kInfinity;
  piece[num_elements - 1] = -kNan;  // in the last, partial block
  piece[2047] = residual[2047] = kMax;
  const std::set<int64_t> non_finite = {300, 301, 1024, 2047, num_elements - 1};
  const std::set<int64_t> flagged = {1, 4, 7, 19};
  const std::vector<float> old_residual = residual;
  Packet packet = new_packet(codec, num_elements);
  std::vector<float> expected_residual = residual;
  const auto expected =
      reference::encode_two_tier(parameters_of(options_of({4, .9}), kContext, kLimits), piece, expected_residual);
  const CodecCounts counts = encode(codec, piece, residual, packet);
  EXPECT_EQ(packet.copy(), expected.packet);
  EXPECT_EQ(bits_of(residual), bits_of(expected_residual));
  EXPECT_EQ(counts.non_finite_blocks, 4);
  EXPECT_GT(counts.kept_elements, 200);
  const std::vector<float> out = decode(codec, packet, num_elements);
  for (int64_t i = 0; i < num_elements; ++i) {
    EXPECT_EQ(std::isnan(out[i]), non_finite.count(i) == 1) << i;
    if (flagged.count(i / 256) == 1) {
      EXPECT_EQ(residual[i], old_residual[i]) << i;
      EXPECT_TRUE(out[i] == 0 || std::isnan(out[i])) << i;
    }
  }
}

// Any patterns and any scales decode to something, or are refused.
TEST(Tagc, ForgedCellsAndScalesDoNoHarm) {
  const int64_t num_elements = 3001;
  for (const std::string& cell_type : kShortCells) {
    TagcCodec codec(with_cells(options_of({4, .9}), cell_type));
    std::vector<float> residual(num_elements);
    Packet packet = new_packet(codec, num_elements);
    encode(codec, make_piece(Data::kHeavyTail, num_elements, 3), residual, packet);
    std::mt19937 random(4);
    for (int trial = 0; trial < 200; ++trial) {
      std::vector<uint8_t> forged = packet.copy();
      forged[64 + random() % (forged.size() - 64)] ^= static_cast<uint8_t>(1 + random() % 255);
      const uint64_t checksum = reference::checksum_of_docs(forged, 48);
      std::memcpy(forged.data() + 40, &checksum, sizeof(checksum));
      Packet copy(packet.bytes);
      std::copy(forged.begin(), forged.end(), copy.data());
      try {
        decode(codec, copy, num_elements);
      } catch (const PacketError&) {
      }
    }
  }
}

class TagcCorruption : public testing::Test {
 protected:
  static constexpr int64_t kElements = 3001;
  TagcCorruption() : codec_(options_of({4, .9})), packet_(codec_.packet_bytes(kElements)) {
    std::vector<float> piece = make_piece(Data::kHeavyTail, kElements, 14);
    piece[200] = kNan;
    std::vector<float> residual(kElements);
    encode(codec_, piece, residual, packet_);
  }
  TagcCodec codec_;
  Packet packet_;
};

TEST_F(TagcCorruption, EverySingleFlippedBitIsFound) {
  EXPECT_NO_THROW(decode(codec_, packet_, kElements));
  for (int64_t bit = 0; bit < 8 * packet_.bytes; ++bit) {
    packet_.data()[bit / 8] ^= static_cast<uint8_t>(1 << bit % 8);
    EXPECT_THROW(decode(codec_, packet_, kElements), PacketError) << "bit " << bit;
    packet_.data()[bit / 8] ^= static_cast<uint8_t>(1 << bit % 8);
  }
}

TEST_F(TagcCorruption, AnotherUnitStepOrSettingIsNamed) {
  const auto message_of = [&](TagcCodec& codec, PacketContext context) {
    return test::error_of<PacketError>([&] { decode(codec, packet_, kElements, context); });
  };
  EXPECT_EQ(message_of(codec_, kContext), "");
  EXPECT_NE(message_of(codec_, {kContext.unit_hash + 1, kContext.step}).find("unit"), std::string::npos);
  EXPECT_NE(message_of(codec_, {kContext.unit_hash, kContext.step + 1}).find("step 7 where 8"), std::string::npos);
  TagcCodec other_rounds(options_of({4, .9}), {.peel_rounds = 63});
  EXPECT_NE(message_of(other_rounds, kContext).find("settings"), std::string::npos);
  TagcCodec ratio_and_cells(with_cells(options_of({2, .9}), "bf16"));
  EXPECT_NE(message_of(ratio_and_cells, kContext).find("cell type 0 where 1"), std::string::npos);
}

TEST(Tagc, RejectsWrongBuffersAndOptions) {
  TagcCodec codec(options_of(kLevels[0]));
  std::vector<float> piece(100);
  std::vector<float> residual(99);
  Packet packet = new_packet(codec, 100);
  EXPECT_THROW(encode(codec, piece, residual, packet), Error);
  residual.resize(100);
  Packet shorter(codec.packet_bytes(100) - 8);
  EXPECT_THROW(encode(codec, piece, residual, shorter), Error);
  Buffer doubles = {residual.data(), 50, DataType::kFloat64};
  EXPECT_THROW(codec.encode(doubles, doubles, packet.buffer(), kContext, {}), Error);
  EXPECT_THROW(codec.decode_sum(packet.buffer(), 2, buffer_of(residual), kContext, {}), Error);
  EXPECT_THROW(TagcCodec(options_of({.5, .9})), OptionError);
  EXPECT_THROW(TagcCodec(options_of({4, 1})), OptionError);
  EXPECT_THROW(TagcCodec(options_of({4, -.1})), OptionError);
  EXPECT_THROW(TagcCodec(with_cells(options_of({4, .9}), "fp8")), OptionError);
  Options without_feedback;
  without_feedback.error_feedback = "off";
  EXPECT_THROW(TagcCodec{without_feedback}, OptionError);
}

}  // namespace
}  // namespace isthmus
