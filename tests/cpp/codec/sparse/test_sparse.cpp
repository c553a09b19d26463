#include <gtest/gtest.h>

#include <cmath>
#include <cstdint>
#include <limits>
#include <random>
#include <string>
#include <vector>

#include "isthmus/error.h"
#include "tests/cpp/codec/dropping_codecs.h"
#include "tests/cpp/codec/pieces.h"
#include "tests/cpp/codec/sparse/sparse_packets.h"
#include "tests/cpp/support/instruction_sets.h"

namespace isthmus {
namespace {

constexpr float kNan = std::numeric_limits<float>::quiet_NaN();
constexpr float kInfinity = std::numeric_limits<float>::infinity();
constexpr float kMax = std::numeric_limits<float>::max();
const char* const kValueTypes[] = {"fp32", "bf16", "int8"};
constexpr int64_t kSizes[] = {0, 1, 2, 39, 40, 41, 63, 255, 256, 257, 1023, 1024, 1025, 2047, 2048, 2049, 10007};

void expect_equal_to_reference(const Options& options, Data data, int64_t num_elements) {
  SCOPED_TRACE(testing::Message() << to_string(data) << ", " << num_elements << " elements, sparsity "
                                  << options.sparsity << ", " << options.value_type << ", error feedback "
                                  << options.error_feedback);
  SparseCodec codec(options);
  const auto encode_reference = [&](PacketContext context, const std::vector<float>& piece,
                                    std::vector<float>& residual) {
    const reference::SparseResult result = reference::encode_sparse(parameters_of(options, context), piece, residual);
    return ReferenceEncoding{result.packet,
                             {.kept_elements = result.kept_elements, .non_finite_blocks = result.non_finite_blocks},
                             result.arrives};
  };
  expect_two_steps_equal(codec, data, num_elements, kContext.unit_hash, encode_reference);
}

TEST(Sparse, EqualsReferenceAtAllSizes) {
  for (const char* value_type : kValueTypes) {
    for (const int64_t num_elements : kSizes) {
      for (const double sparsity : {.9875, .95, .5}) {
        expect_equal_to_reference(sparse_options(sparsity, value_type), Data::kHeavyTail, num_elements);
      }
      expect_equal_to_reference(sparse_options(.9, value_type, "off"), Data::kHeavyTail, num_elements);
    }
  }
}

// Every way in which the selection may go: one element, bounds from 64 and 256 sub-groups and from all elements, counts
// of one and of two bytes, and all elements.
TEST(Sparse, EqualsReferenceAtAllSparsities) {
  for (const double sparsity : {.9995, .9990, .97, .961, .96, .85, .84, .752, .7507, .75, .3, .002, 0.0}) {
    for (const Data data : {Data::kHeavyTail, Data::kFewDistinct, Data::kMostlyZeros}) {
      expect_equal_to_reference(sparse_options(sparsity), data, 5000);
    }
  }
}

TEST(Sparse, EqualsReferenceOnDifficultData) {
  for (const Data data : all_data()) {
    for (const char* value_type : kValueTypes) {
      for (const double sparsity : {.9875, .95, .5}) {
        for (const char* error_feedback : {"on", "off"}) {
          expect_equal_to_reference(sparse_options(sparsity, value_type, error_feedback), data, 4097);
        }
      }
    }
  }
}

TEST(Sparse, AllInstructionSetsGiveTheSameBits) {
  in_every_instruction_set([] {
    for (const Data data : all_data()) {
      for (const char* value_type : kValueTypes) {
        expect_equal_to_reference(sparse_options(.9875, value_type), data, 9001);
        expect_equal_to_reference(sparse_options(.95, value_type, "off"), data, 5121);
        expect_equal_to_reference(sparse_options(.5, value_type), data, 2049);
      }
    }
  });
}

TEST(Sparse, PacketSizes) {
  const int64_t num_elements = int64_t{1} << 20;  // 1024 blocks
  EXPECT_EQ(SparseCodec(sparse_options(.9875, "fp32")).packet_bytes(num_elements), 48 + 1024 * (4 + 13 + 13 * 4));
  EXPECT_EQ(SparseCodec(sparse_options(.9875, "bf16")).packet_bytes(num_elements), 48 + 1024 * (4 + 13 + 13 * 2));
  EXPECT_EQ(SparseCodec(sparse_options(.9875, "int8")).packet_bytes(num_elements), 48 + 1024 * (4 + 2 + 13 + 13));
  EXPECT_EQ(SparseCodec(sparse_options(.75, "bf16")).packet_bytes(num_elements), 48 + 1024 * (8 + 256 + 256 * 2));
  for (const int64_t size : kSizes) {
    EXPECT_EQ(SparseCodec(sparse_options(.9)).packet_bytes(size) % 16, 0);
  }
  EXPECT_EQ(SparseCodec(sparse_options(.9)).packet_bytes(0), 48);
}

TEST(Sparse, KeepsTheShareOfEachBlockRounded) {
  const auto kept = [](double sparsity, int64_t num_elements) {
    SparseCodec codec(sparse_options(sparsity));
    std::vector<float> residual(num_elements);
    Packet packet = new_packet(codec, num_elements);
    return encode(codec, make_piece(Data::kHeavyTail, num_elements, 1), residual, packet).kept_elements;
  };
  EXPECT_EQ(kept(.9875, 1024), 13);
  EXPECT_EQ(kept(.95, 1024), 51);
  EXPECT_EQ(kept(.9, 1024 + 15), 102 + 2);  // halves up
  EXPECT_EQ(kept(.9, 1024 + 14), 102 + 1);
  EXPECT_EQ(kept(.9999, 1), 1);  // at least one
  EXPECT_EQ(kept(0, 1500), 1500);
}

TEST(Sparse, KeepsTheFirstAmongEquals) {
  SparseCodec codec(sparse_options(.95));
  std::vector<float> residual(1500);
  Packet packet = new_packet(codec, 1500);
  encode(codec, make_piece(Data::kAllEqual, 1500, 1), residual, packet);
  const std::vector<float> out = decode(codec, packet, 1500);
  for (int64_t i = 0; i < 1500; ++i) {
    EXPECT_EQ(out[i], i % 1024 < (i < 1024 ? 51 : 24) ? -2.5F : 0.0F) << i;
  }
}

// What arrives and what stays add up to what was there, without any rounding, whatever values are sent as.
TEST(Sparse, ConservesEveryElement) {
  for (const Data data : all_data()) {
    for (const char* value_type : kValueTypes) {
      SCOPED_TRACE(testing::Message() << to_string(data) << ", " << value_type);
      const int64_t num_elements = 3011;
      SparseCodec codec(sparse_options(.9, value_type));
      std::vector<float> residual(num_elements);
      for (uint64_t step = 0; step < 3; ++step) {
        std::vector<float> piece = make_piece(data, num_elements, 40 + static_cast<uint32_t>(step));
        std::vector<float> sums;
        for (int64_t i = 0; i < num_elements; ++i) {
          piece[i] *= .25F;  // three of the largest numbers do not overflow then
          sums.push_back(piece[i] + residual[i]);
        }
        Packet packet = new_packet(codec, num_elements);
        encode(codec, piece, residual, packet);
        const std::vector<float> out = decode(codec, packet, num_elements);
        for (int64_t i = 0; i < num_elements; ++i) {
          ASSERT_EQ(static_cast<double>(out[i]) + static_cast<double>(residual[i]), static_cast<double>(sums[i])) << i;
        }
      }
    }
  }
}

// The largest numbers round to the largest that the type has, never to Inf.
TEST(Sparse, LargestNumbersStayFinite) {
  for (const char* value_type : kValueTypes) {
    SparseCodec codec(sparse_options(.9, value_type));
    std::vector<float> piece(10, kMax);
    piece[3] = -kMax;
    std::vector<float> residual(10);
    Packet packet = new_packet(codec, 10);
    encode(codec, piece, residual, packet);
    const std::vector<float> out = decode(codec, packet, 10);
    EXPECT_GT(out[0], 3e38F);
    EXPECT_TRUE(std::isfinite(out[0]));
    EXPECT_EQ(out[0] + residual[0], kMax);
    EXPECT_LE(residual[0], 2e36F);
  }
}

// One value that is far larger takes the scale of its block alone; what rounds to zero there stays.
TEST(Sparse, OneHugeOutlier) {
  for (const char* value_type : kValueTypes) {
    SparseCodec codec(sparse_options(.9, value_type));
    std::vector<float> piece = make_piece(Data::kHeavyTail, 3000, 5);
    piece[1500] = -3e38F;
    std::vector<float> residual(3000);
    Packet packet = new_packet(codec, 3000);
    encode(codec, piece, residual, packet);
    const std::vector<float> out = decode(codec, packet, 3000);
    EXPECT_NEAR(out[1500] / -3e38F, 1, .01);
    for (int64_t i = 1024; i < 2048; ++i) {
      if (i != 1500) {
        EXPECT_EQ(out[i] + residual[i], piece[i]) << i;
      }
    }
    EXPECT_NE(out[0] + out[1] + out[2] + out[3] + out[4] + out[5] + out[6] + out[7] + out[8] + out[9] + out[10], 0);
  }
}

TEST(Sparse, WithoutFeedbackNothingIsKept) {
  SparseCodec codec(sparse_options(.9, "bf16", "off"));
  EXPECT_FALSE(codec.keeps_residual());
  EXPECT_TRUE(SparseCodec(sparse_options(.9, "bf16", "on")).keeps_residual());
  EXPECT_TRUE(SparseCodec(sparse_options(.9)).keeps_residual());
  const std::vector<float> piece = make_piece(Data::kHeavyTail, 2500, 3);
  std::vector<float> none;
  Packet first = new_packet(codec, 2500);
  Packet second = new_packet(codec, 2500);
  encode(codec, piece, none, first);
  encode(codec, piece, none, second);
  EXPECT_EQ(first.copy(), second.copy());
}

TEST(Sparse, NonFiniteBlocksArriveAsNanAndKeepTheirResidual) {
  for (const char* value_type : kValueTypes) {
    for (const double sparsity : {.9, .5}) {  // counts of one byte and of two
      const int64_t num_elements = 6000;
      const Options options = sparse_options(sparsity, value_type);
      SparseCodec codec(options);
      std::vector<float> piece = make_piece(Data::kHeavyTail, num_elements, 6);
      std::vector<float> residual = make_piece(Data::kHeavyTail, num_elements, 7);
      piece[1024] = -kInfinity;
      piece[4095] = residual[4095] = kMax;  // only their sum is Inf
      piece[num_elements - 1] = -kNan;      // in the last, shorter block
      const std::vector<float> old_residual = residual;
      std::vector<float> expected_residual = residual;
      const auto expected = reference::encode_sparse(parameters_of(options), piece, expected_residual);
      Packet packet = new_packet(codec, num_elements);
      const CodecCounts counts = encode(codec, piece, residual, packet);
      EXPECT_EQ(packet.copy(), expected.packet);
      EXPECT_EQ(bits_of(residual), bits_of(expected_residual));
      EXPECT_EQ(counts.non_finite_blocks, 3);
      EXPECT_EQ(counts.kept_elements, 3 * (sparsity == .9 ? 102 : 512));
      const std::vector<float> out = decode(codec, packet, num_elements);
      for (int64_t i = 0; i < num_elements; ++i) {
        const bool flagged = i / 1024 == 1 || i / 1024 == 3 || i / 1024 == 5;
        ASSERT_EQ(std::isnan(out[i]), flagged) << i;
        if (flagged) {
          ASSERT_EQ(residual[i], old_residual[i]) << i;
        }
      }
    }
  }
}

TEST(Sparse, AddsSeveralPacketsToWhatIsThere) {
  SparseCodec codec(sparse_options(.9));
  expect_packets_are_added(codec, 2500, kContext);
}

TEST(Sparse, ResidualsAreSentInLaterSteps) {
  for (const char* value_type : kValueTypes) {
    SparseCodec codec(sparse_options(.9, value_type));
    const std::vector<float> piece = make_piece(Data::kHeavyTail, 2000, 8);
    const std::vector<float> zeros(2000);
    std::vector<float> residual(2000);
    std::vector<float> arrived(2000);
    for (int step = 0; step < 100; ++step) {
      Packet packet = new_packet(codec, 2000);
      encode(codec, step == 0 ? piece : zeros, residual, packet);
      codec.decode_sum(packet.buffer(), 1, buffer_of(arrived), kContext, {});
    }
    for (int64_t i = 0; i < 2000; ++i) {
      ASSERT_NEAR(arrived[i], piece[i], 1e-4) << value_type << ", " << i;
      ASSERT_NEAR(residual[i], 0, 1e-4) << value_type << ", " << i;
    }
  }
}

TEST(Sparse, NoPacketsAndNoElements) {
  SparseCodec codec(sparse_options(.9));
  expect_nothing_of_nothing(codec, kContext);
}

}  // namespace
}  // namespace isthmus
