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

// In the last, partial block, too; and where a sum is Inf and no summand is.
TEST(Tagc, NonFiniteBlocksAreThoseOfTheReference) {
  constexpr int64_t kElements = 5000;
  constexpr TagcLimits kLimits = {.block_elements = 256};
  TagcCodec codec(options_of({4, .9}), kLimits);
  std::vector<float> piece = make_piece(Data::kHeavyTail, kElements, 6);
  std::vector<float> residual = make_piece(Data::kHeavyTail, kElements, 7);
  piece[300] = kNan;
  piece[301] = -kInfinity;
  piece[1024] = kInfinity;
  piece[kElements - 1] = -kNan;
  piece[2047] = residual[2047] = kMax;
  Packet packet = new_packet(codec, kElements);
  std::vector<float> expected_residual = residual;
  const auto expected =
      reference::encode_two_tier(parameters_of(options_of({4, .9}), kContext, kLimits), piece, expected_residual);
  EXPECT_EQ(encode(codec, piece, residual, packet).non_finite_blocks, 4);
  EXPECT_EQ(packet.copy(), expected.packet);
  EXPECT_EQ(bits_of(residual), bits_of(expected_residual));
  const std::vector<float> out = decode(codec, packet, kElements);
  const std::set<int64_t> non_finite = {300, 301, 1024, 2047, kElements - 1};
  for (int64_t i = 0; i < kElements; ++i) {
    EXPECT_EQ(std::isnan(out[i]), non_finite.contains(i)) << i;
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

TEST(Tagc, OtherSettingsAreNamed) {
  constexpr int64_t kElements = 3001;
  TagcCodec codec(options_of({4, .9}));
  std::vector<float> residual(kElements);
  Packet packet = new_packet(codec, kElements);
  encode(codec, make_piece(Data::kHeavyTail, kElements, 14), residual, packet);
  const auto message_of = [&](TagcCodec& other) {
    return test::error_of<PacketError>([&] { decode(other, packet, kElements); });
  };
  EXPECT_EQ(message_of(codec), "");
  TagcCodec other_rounds(options_of({4, .9}), {.peel_rounds = 63});
  EXPECT_NE(message_of(other_rounds).find("settings"), std::string::npos);
  TagcCodec ratio_and_cells(with_cells(options_of({2, .9}), "bf16"));
  EXPECT_NE(message_of(ratio_and_cells).find("cell type 0 where 1"), std::string::npos);
}

TEST(Tagc, RejectsWrongOptions) {
  EXPECT_THROW(TagcCodec(options_of({.5, .9})), OptionError);
  EXPECT_THROW(TagcCodec(options_of({4, 1})), OptionError);
  EXPECT_THROW(TagcCodec(options_of({4, -.1})), OptionError);
  EXPECT_THROW(TagcCodec(with_cells(options_of({4, .9}), "fp8")), OptionError);
  Options without_feedback;
  without_feedback.error_feedback = ErrorFeedback::kOff;
  EXPECT_THROW(TagcCodec{without_feedback}, OptionError);
}

}  // namespace
}  // namespace isthmus
