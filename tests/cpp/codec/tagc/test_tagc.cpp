#include <gtest/gtest.h>

#include <cstdint>
#include <limits>
#include <string>
#include <vector>

#include "isthmus/error.h"
#include "kernels/tagc/layout.h"
#include "tests/cpp/codec/pieces.h"
#include "tests/cpp/codec/tagc/tagc_packets.h"
#include "tests/cpp/codec/tagc/tagc_reference.h"
#include "tests/cpp/support/instruction_sets.h"

namespace isthmus {
namespace {

constexpr float kNan = std::numeric_limits<float>::quiet_NaN();

// Two steps against the reference: packets, residuals, counts and what arrives, bit for bit.
void expect_equal_to_reference(const Options& options, Data data, int64_t num_elements, TagcLimits limits = {}) {
  SCOPED_TRACE(testing::Message() << to_string(data) << ", " << num_elements << " elements, ratio " << options.ratio
                                  << ", sparsity " << options.sparsity << ", blocks " << limits.block_elements
                                  << ", cells " << options.cell_type);
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

TEST(Tagc, ShortCellsEqualReference) {
  for (const std::string& cell_type : kShortCells) {
    for (const int64_t num_elements : kSizes) {
      expect_equal_to_reference(with_cells(options_of(kLevels[1]), cell_type), Data::kHeavyTail, num_elements);
    }
    for (const Data data : all_data()) {
      expect_equal_to_reference(with_cells(options_of(kLevels[2]), cell_type), data, 140001);
      expect_equal_to_reference(with_cells(options_of({4, 0}), cell_type), data, 4097);
    }
  }
}

TEST(Tagc, RowsByLoadEqualReference) {
  for (const double sparsity : {0.0, .8, .9875, .9999}) {
    for (const int64_t num_elements : kSizes) {
      expect_equal_to_reference(options_of({0, sparsity}), Data::kHeavyTail, num_elements);
    }
    expect_equal_to_reference(with_cells(options_of({0, sparsity}), "int8"), Data::kOneLargeBlock, 70001,
                              {.block_elements = 256});
  }
}

TEST(Tagc, AllInstructionSetsGiveTheSameBits) {
  in_every_instruction_set([] {
    for (const Data data : all_data()) {
      expect_equal_to_reference(options_of(kLevels[2]), data, 70001);
      expect_equal_to_reference(options_of({4, .5}), data, 4033);
      for (const std::string& cell_type : kShortCells) {
        expect_equal_to_reference(with_cells(options_of({0, .9}), cell_type), data, 20001);
      }
    }
  });
}

// Whatever bound the threshold search starts from, it finds the same elements.
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

}  // namespace
}  // namespace isthmus
