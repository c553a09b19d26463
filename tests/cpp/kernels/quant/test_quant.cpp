#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <limits>
#include <random>
#include <utility>
#include <vector>

#include "isthmus/error.h"
#include "kernels/quant/host.h"
#include "tests/cpp/codec/pieces.h"
#include "tests/cpp/kernels/quant/quant_reference.h"
#include "tests/cpp/support/instruction_sets.h"
#include "tests/cpp/support/packets.h"
#include "tests/cpp/support/typed_data.h"

namespace isthmus::test {
namespace {

constexpr PacketContext kContext = {.unit_hash = 0xfedcba9876543210, .step = 7, .segment = 2, .sender = 5};
constexpr int kWidths[] = {1, 2, 3, 4, 5, 6, 7, 8};

Options options_of(int64_t bits) {
  Options options;
  options.bits = bits;
  return options;
}

Options with_feedback(Options options) {
  options.error_feedback = ErrorFeedback::kOn;
  return options;
}

reference::QuantParameters parameters_of(const Options& options, PacketContext context = kContext) {
  return {.bits = static_cast<int>(options.bits),
          .error_feedback = options.error_feedback == ErrorFeedback::kOn,
          .unit_hash = context.unit_hash,
          .step = context.step,
          .segment = context.segment,
          .sender = context.sender};
}

Packet encoded(QuantCodec& codec, const std::vector<float>& piece, std::vector<float>& residual,
               PacketContext context = kContext, CodecCounts* counts = nullptr) {
  Packet packet(codec.packet_bytes(static_cast<int64_t>(piece.size())));
  const CodecCounts result = codec.encode(buffer_of(piece), buffer_of(residual), packet.buffer(), context, {});
  if (counts != nullptr) {
    *counts = result;
  }
  return packet;
}

std::vector<float> decoded(QuantCodec& codec, Packet& packet, size_t num_elements, PacketContext context = kContext) {
  std::vector<float> out(num_elements);
  codec.decode_sum(packet.buffer(), 1, buffer_of(out), context, {});
  return out;
}

// What arrives of a piece without error feedback.
std::vector<float> sent(const Options& options, const std::vector<float>& piece, PacketContext context = kContext) {
  QuantCodec codec(options);
  std::vector<float> none;
  Packet packet = encoded(codec, piece, none, context);
  return decoded(codec, packet, piece.size(), context);
}

// Two steps against the reference: packets, residuals, counts and what arrives, bit for bit.
void expect_equal_to_reference(const Options& options, const std::vector<std::vector<float>>& pieces) {
  SCOPED_TRACE(testing::Message() << pieces[0].size() << " elements, " << options.codec_settings());
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
    ASSERT_EQ(first_difference(buffer_of(residual), buffer_of(expected_residual)), -1);
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
    ASSERT_EQ(first_difference(buffer_of(out), buffer_of(sum)), -1);
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
TEST(Quant, EqualsReferenceInEveryInstructionSet) {
  in_every_instruction_set([] {
    for (const int bits : kWidths) {
      for (const Data data : all_data()) {
        expect_equal_to_reference(options_of(bits), data, 1000);
        expect_equal_to_reference(with_feedback(options_of(bits)), data, 1000);
      }
    }
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

// NaN arrives for a whole group, and its residual stays; in the tail for its element alone. Step two has the residuals.
TEST(Quant, NonFiniteGroupsEqualReference) {
  const int64_t tail = 128 * 9;
  std::vector<float> piece = make_piece(Data::kHeavyTail, tail + 100, 6);
  piece[130] = piece[tail + 8] = kNan;
  piece[131] = piece[tail + 7] = -kInfinity;
  piece[600] = kInfinity;
  std::vector<float> large = make_piece(Data::kHeavyTail, tail + 100, 7);
  large[1151] = kMax;
  for (const int bits : kWidths) {
    // In the third step a sum is Inf where no summand is.
    expect_equal_to_reference(with_feedback(options_of(bits)), {piece, large, std::vector<float>(tail + 100, kMax)});
    expect_equal_to_reference(options_of(bits), {piece});
  }
}

std::vector<float> normal_values(size_t count) {
  std::mt19937 random(9);
  std::normal_distribution<float> draw;
  std::vector<float> values(count);
  std::generate(values.begin(), values.end(), [&] { return draw(random); });
  return values;
}

// Max 1960, table II: the least error of a uniform quantiser of a normal distribution.
TEST(Quant, ErrorOfRotatedGroupsIsNearTheory) {
  const std::vector<float> normal = normal_values(100 * 512);
  // Rotation makes of anything what a normal distribution would be.
  std::vector<float> outliers = normal;
  for (size_t i = 0; i < outliers.size(); i += 10) {
    outliers[i] *= 20;
  }
  for (const auto& [bits, least] : {std::pair(1, .363), std::pair(2, .1188), std::pair(3, .0374), std::pair(4, .0115),
                                    std::pair(5, .00350), std::pair(6, .00104), std::pair(7, .000304)}) {
    const double error = least / (1 - least);  // of an estimate without bias
    // 128 values in steps of their own mean square have fewer extremes than the distribution: 7% with 6 bits.
    EXPECT_NEAR(relative_error(normal, sent(options_of(bits), normal)), error, .08 * error) << bits;
    EXPECT_NEAR(relative_error(outliers, sent(options_of(bits), outliers)), error, .25 * error) << bits;
  }
  EXPECT_LT(relative_error(normal, sent(options_of(8), normal)), 1e-4);
}

// The mean over n draws of the rotation has the n-th part of one draw's error, and whatever bias there is. (In groups
// that single elements dominate, each element has one, of a percent at 3 bits. Scales, which are sent as bfloat16, are
// rounded the same way in most draws: .05%.)
TEST(Quant, MeanOfManyDrawsIsWhatWasGiven) {
  constexpr int kDraws = 1000;
  const std::vector<float> piece = normal_values(20 * 128 + 5);
  for (const int bits : kWidths) {
    std::vector<double> mean(piece.size());
    double error_of_one = 0;
    for (uint64_t step = 0; step < kDraws; ++step) {
      const std::vector<float> one = sent(options_of(bits), piece, {.unit_hash = 1, .step = step});
      error_of_one += relative_error(piece, one) / kDraws;
      for (size_t i = 0; i < mean.size(); ++i) {
        mean[i] += one[i] / double{kDraws};
      }
    }
    const double error = relative_error(piece, mean);
    EXPECT_NEAR(error, error_of_one / kDraws, .1 * error_of_one / kDraws + 3e-7) << bits << " bits";
  }
}

// Rows of an embedding that no token used, if they fill half a group. A quarter of it gets noise.
TEST(Quant, HalfAGroupOfZerosStaysZero) {
  const auto zeros_of = [](int bits, int64_t begin, int64_t count) {
    std::vector<float> piece = normal_values(512);
    std::fill_n(piece.begin() + begin, count, 0.0F);
    const std::vector<float> arrived = sent(options_of(bits), piece);
    return std::count(arrived.begin() + begin, arrived.begin() + begin + count, 0.0F);
  };
  for (const int bits : kWidths) {
    for (const int64_t begin : {0, 64, 128 + 64}) {
      EXPECT_EQ(zeros_of(bits, begin, 64), 64) << bits << " bits";
    }
    EXPECT_LT(zeros_of(bits, 32, 32), 16) << bits << " bits";
  }
}

TEST(Quant, ResidualsAreForFeedbackAlone) {
  EXPECT_THROW(QuantCodec(options_of(0)), OptionError);
  EXPECT_THROW(QuantCodec(options_of(9)), OptionError);
  std::vector<float> values(200);
  QuantCodec plain(options_of(4));
  QuantCodec feedback(with_feedback(options_of(4)));
  Packet packet(plain.packet_bytes(200));
  EXPECT_FALSE(plain.keeps_residual());
  EXPECT_TRUE(feedback.keeps_residual());
  EXPECT_THROW(plain.encode(buffer_of(values), buffer_of(values), packet.buffer(), kContext, {}), Error);
  EXPECT_THROW(feedback.encode(buffer_of(values), {}, packet.buffer(), kContext, {}), Error);
}

}  // namespace
}  // namespace isthmus::test
