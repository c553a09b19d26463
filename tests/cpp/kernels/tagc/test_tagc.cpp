#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <random>
#include <set>
#include <string>
#include <vector>

#include "isthmus/error.h"
#include "kernels/tagc/host.h"
#include "kernels/tagc/layout.h"
#include "tests/cpp/codec/pieces.h"
#include "tests/cpp/kernels/tagc/tagc_reference.h"
#include "tests/cpp/support/error_of.h"
#include "tests/cpp/support/instruction_sets.h"
#include "tests/cpp/support/packets.h"

namespace isthmus::test {
namespace {

constexpr PacketContext kContext = {.unit_hash = 0xfedcba9876543210, .step = 7, .sender = 5};

struct Level {
  double ratio;
  double sparsity;
};
constexpr Level kLevels[] = {{2, .8}, {4, .9}, {10, .9875}};

Options options_of(Level level) {
  Options options;
  options.ratio = level.ratio;
  options.sparsity = level.sparsity;
  return options;
}

reference::TagcParameters parameters_of(const Options& options, PacketContext context = kContext,
                                        TagcLimits limits = {}) {
  return {.ratio = options.ratio,
          .sparsity = options.sparsity,
          .block_elements = limits.block_elements,
          .peel_rounds = limits.peel_rounds,
          .unit_hash = context.unit_hash,
          .step = context.step,
          .sender = context.sender};
}

// Two steps against the reference: packets, residuals, counts and what arrives, bit for bit.
void expect_equal_to_reference(const Options& options, Data data, int64_t num_elements, TagcLimits limits = {}) {
  SCOPED_TRACE(testing::Message() << to_string(data) << ", " << num_elements << " elements, ratio " << options.ratio
                                  << ", sparsity " << options.sparsity << ", blocks " << limits.block_elements);
  TagcCodec codec(options, limits);
  std::vector<float> residual(num_elements);
  std::vector<float> expected_residual = residual;
  for (uint64_t step = 0; step < 2; ++step) {
    const PacketContext context = {kContext.unit_hash, step};
    const std::vector<float> piece = make_piece(data, num_elements, 11 + static_cast<uint32_t>(step));
    Packet packet = new_packet(codec, num_elements);
    const CodecCounts counts = encode(codec, piece, residual, packet, context);
    const reference::TwoTierResult expected =
        reference::encode_two_tier(parameters_of(options, context, limits), piece, expected_residual);
    ASSERT_EQ(packet.copy(), expected.packet);
    ASSERT_EQ(bits_of(residual), bits_of(expected_residual));
    EXPECT_EQ(counts.encoded_elements, num_elements);
    EXPECT_EQ(counts.kept_elements, expected.kept_elements);
    EXPECT_EQ(counts.held_back_elements, expected.held_back_elements);
    EXPECT_EQ(counts.estimated_elements, 0);
    EXPECT_EQ(counts.non_finite_blocks, expected.non_finite_blocks);
    std::vector<float> sums(num_elements);
    for (const auto& [element, value] : expected.arrives) {
      sums[element] += value;  // -0 becomes 0
    }
    ASSERT_EQ(bits_of(decode(codec, packet, num_elements, context)), bits_of(sums));
  }
}

constexpr int64_t kSizes[] = {0,   1,   2,    63,   64,   65,   100,  127,  128,   129,
                              191, 193, 1023, 1024, 1025, 4095, 4096, 4097, 12345, 100003};

TEST(Tagc, EqualsReferenceAtAllSizesAndLevels) {
  for (const Level level : kLevels) {
    for (const int64_t num_elements : kSizes) {
      expect_equal_to_reference(options_of(level), Data::kHeavyTail, num_elements);
    }
  }
}

TEST(Tagc, EqualsReferenceOnDifficultData) {
  for (const Data data : all_data()) {
    for (const int64_t num_elements : {1, 65, 4097, 140001}) {
      expect_equal_to_reference(options_of(kLevels[2]), data, num_elements);
      expect_equal_to_reference(options_of({2, .5}), data, num_elements);
    }
  }
}

TEST(Tagc, EqualsReferenceWithEveryBlockSize) {
  for (int64_t block_elements = 64; block_elements <= 4096; block_elements *= 2) {
    for (const int64_t num_elements : {1, 4097, 33333}) {
      expect_equal_to_reference(options_of(kLevels[1]), Data::kHeavyTail, num_elements,
                                {.block_elements = block_elements});
    }
  }
}

TEST(Tagc, EqualsReferenceWhereMuchDoesNotPeel) {
  expect_equal_to_reference(options_of({10, .9}), Data::kHeavyTail, 20000);
  expect_equal_to_reference(options_of({10, 0}), Data::kHeavyTail, 5000);
  expect_equal_to_reference(options_of({4, .8}), Data::kHeavyTail, 20000, {.peel_rounds = 1});
  expect_equal_to_reference(options_of({4, .8}), Data::kHeavyTail, 20000, {.peel_rounds = 2});
}

TEST(Tagc, AllInstructionSetsGiveTheSameBits) {
  in_every_instruction_set([] {
    for (const Data data : all_data()) {
      expect_equal_to_reference(options_of(kLevels[2]), data, 70001);
      expect_equal_to_reference(options_of({4, .5}), data, 4033);
      expect_equal_to_reference(options_of({10, .9}), data, 20001);
    }
  });
}

TEST(Tagc, SelectionDoesNotDependOnItsFirstGuess) {
  const kernels::TagcShape shape = {.num_elements = 200001, .block_elements = 1024, .num_blocks = 196, .num_rows = 20};
  for (const Data data : {Data::kHeavyTail, Data::kAllEqual, Data::kMostlyZeros, Data::kFewDistinct}) {
    std::vector<float> piece = make_piece(data, shape.num_elements, 13);
    piece[5000] = kNan;
    std::vector<std::vector<uint64_t>> indexes;
    for (const uint32_t bound : {1U, 0x3f800000U, 0x41f00000U, 0x7f7fffffU, 0x7f800000U}) {
      std::vector<float> residual(shape.num_elements);
      std::vector<uint64_t> flags(shape.flag_words(), 0xa5a5);
      std::vector<uint64_t> index(shape.index_words(), 0xa5a5);
      std::vector<uint32_t> candidates(kernels::selection_capacity(shape, 2500));
      const kernels::Selection selection = kernels::tagc_kernels().select(
          shape, 2500, bound, piece.data(), residual.data(), flags.data(), index.data(), candidates.data());
      EXPECT_EQ(selection.non_finite_blocks, 1);
      EXPECT_EQ(selection.kept_elements == 2500, data != Data::kMostlyZeros);
      indexes.push_back(index);
    }
    for (const auto& index : indexes) {
      EXPECT_EQ(index, indexes[0]) << to_string(data);
    }
  }
}

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
  EXPECT_EQ(encode(codec, piece, residual, packet, kContext).non_finite_blocks, 4);
  EXPECT_EQ(packet.copy(), expected.packet);
  EXPECT_EQ(bits_of(residual), bits_of(expected_residual));
  const std::vector<float> out = decode(codec, packet, kElements, kContext);
  const std::set<int64_t> non_finite = {300, 301, 1024, 2047, kElements - 1};
  for (int64_t i = 0; i < kElements; ++i) {
    EXPECT_EQ(std::isnan(out[i]), non_finite.contains(i)) << i;
  }
}

// Any cells decode to something, or are refused.
TEST(Tagc, ForgedCellsDoNoHarm) {
  const int64_t num_elements = 3001;
  TagcCodec codec(options_of({4, .9}));
  std::vector<float> residual(num_elements);
  Packet packet = new_packet(codec, num_elements);
  encode(codec, make_piece(Data::kHeavyTail, num_elements, 3), residual, packet, kContext);
  std::mt19937 random(4);
  for (int trial = 0; trial < 200; ++trial) {
    std::vector<uint8_t> forged = packet.copy();
    forged[64 + random() % (forged.size() - 64)] ^= static_cast<uint8_t>(1 + random() % 255);
    const uint64_t checksum = reference::checksum_of_docs(forged, 48);
    std::memcpy(forged.data() + 40, &checksum, sizeof(checksum));
    Packet copy(packet.bytes);
    std::copy(forged.begin(), forged.end(), copy.data());
    try {
      decode(codec, copy, num_elements, kContext);
    } catch (const PacketError&) {
    }
  }
}

TEST(Tagc, OtherSettingsAreNamed) {
  constexpr int64_t kElements = 3001;
  TagcCodec codec(options_of({4, .9}));
  std::vector<float> residual(kElements);
  Packet packet = new_packet(codec, kElements);
  encode(codec, make_piece(Data::kHeavyTail, kElements, 14), residual, packet, kContext);
  const auto message_of = [&](TagcCodec& other) {
    return error_of<PacketError>([&] { decode(other, packet, kElements, kContext); });
  };
  EXPECT_EQ(message_of(codec), "");
  TagcCodec other_rounds(options_of({4, .9}), {.peel_rounds = 63});
  EXPECT_NE(message_of(other_rounds).find("peeling rounds 64 where 63"), std::string::npos) << message_of(other_rounds);
}

TEST(Tagc, RejectsWrongOptions) {
  EXPECT_THROW(TagcCodec(options_of({.5, .9})), OptionError);
  EXPECT_THROW(TagcCodec(options_of({4, 1})), OptionError);
  EXPECT_THROW(TagcCodec(options_of({4, -.1})), OptionError);
  EXPECT_THROW(TagcCodec(options_of({0, .9})), OptionError);
  Options without_feedback;
  without_feedback.error_feedback = ErrorFeedback::kOff;
  EXPECT_THROW(TagcCodec{without_feedback}, OptionError);
}

}  // namespace
}  // namespace isthmus::test
