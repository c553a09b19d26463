// How much codec quant loses, on what the loss depends, and that error feedback sends it later.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <numeric>
#include <random>
#include <vector>

#include "tests/cpp/codec/pieces.h"
#include "tests/cpp/codec/quant/quant_packets.h"

namespace isthmus {
namespace {

double square(double value) { return value * value; }

double relative_error(const std::vector<float>& piece, const std::vector<float>& out) {
  double error = 0;
  double energy = 0;
  for (size_t i = 0; i < piece.size(); ++i) {
    error += square(static_cast<double>(piece[i]) - out[i]);
    energy += square(piece[i]);
  }
  return error / energy;
}

std::vector<float> normal_values(int64_t count, uint32_t seed) {
  std::mt19937 random(seed);
  std::normal_distribution<float> normal;
  std::vector<float> values(count);
  std::generate(values.begin(), values.end(), [&] { return normal(random); });
  return values;
}

// Max 1960, table II: the least error of a uniform quantiser of a normal distribution.
TEST(Quant, ErrorOfRotatedGroupsIsNearTheory) {
  struct Row {
    int bits;
    double least_error;
  };
  const std::vector<float> normal = normal_values(100 * 512, 9);
  // Rotation makes of anything what a normal distribution would be.
  std::vector<float> outliers = normal;
  for (size_t i = 0; i < outliers.size(); i += 10) {
    outliers[i] *= 20;
  }
  for (const Row& row : {Row{1, .363}, Row{2, .1188}, Row{3, .0374}, Row{4, .0115}}) {
    const double error = row.least_error / (1 - row.least_error);  // of an estimate without bias
    EXPECT_NEAR(relative_error(normal, sent(options_of(row.bits), normal)), error, .05 * error) << row.bits;
    EXPECT_NEAR(relative_error(outliers, sent(options_of(row.bits), outliers)), error, .25 * error) << row.bits;
  }
  EXPECT_LT(relative_error(normal, sent(options_of(8), normal)), 1e-4);
}

// The mean over many steps, each with other signs, of what arrives of one piece.
std::vector<double> mean_arrived(const Options& options, const std::vector<float>& piece, int steps) {
  std::vector<double> mean(piece.size());
  for (int step = 0; step < steps; ++step) {
    const std::vector<float> out = sent(options, piece, {.unit_hash = 5, .step = static_cast<uint64_t>(step)});
    for (size_t i = 0; i < piece.size(); ++i) {
      mean[i] += out[i] / steps;
    }
  }
  return mean;
}

// How much of the piece is in the mean: 1 without bias.
double projection(const std::vector<float>& piece, const std::vector<double>& mean) {
  double product = 0;
  double energy = 0;
  for (size_t i = 0; i < piece.size(); ++i) {
    product += piece[i] * mean[i];
    energy += square(piece[i]);
  }
  return product / energy;
}

TEST(Quant, UnbiasedOverRotations) {
  constexpr int kSteps = 600;
  const std::vector<float> piece = make_piece(Data::kHeavyTail, 128 * 8, 13);
  for (const int bits : {1, 2, 3, 4}) {
    const std::vector<double> mean = mean_arrived(options_of(bits), piece, kSteps);
    // The error of one step, .57 at one bit, falls with the number of steps.
    EXPECT_NEAR(projection(piece, mean), 1, .005) << bits;
    EXPECT_LT(relative_error(piece, std::vector<float>(mean.begin(), mean.end())), .004) << bits;
  }
}

TEST(Quant, RandomBitsDependOnUnitStepSegmentSenderAndBlock) {
  const std::vector<float> piece(1024, 1.0F);
  const auto codes_of = [&](PacketContext context) {
    QuantCodec codec(options_of(4));
    std::vector<float> none;
    const std::vector<uint8_t> packet = encoded(codec, piece, none, context).copy();
    return std::vector<uint8_t>(packet.begin() + 128, packet.end());
  };
  const std::vector<uint8_t> codes = codes_of({1, 1, 0});
  EXPECT_EQ(codes, codes_of({1, 1, 0}));
  EXPECT_NE(codes, codes_of({2, 1, 0}));
  EXPECT_NE(codes, codes_of({1, 2, 0}));
  EXPECT_NE(codes, codes_of({1, 1, 1}));
  EXPECT_NE(codes, codes_of({1, 1, 0, 1}));
  EXPECT_NE(codes_of({1, 1, 0, 1}), codes_of({1, 1, 1, 0}));
  EXPECT_FALSE(std::equal(codes.begin(), codes.begin() + 256, codes.begin() + 256));
}

// What is lost in one step arrives in later ones.
TEST(Quant, ErrorFeedbackSendsTheRestLater) {
  for (const int bits : kWidths) {
    QuantCodec codec(with_feedback(options_of(bits)));
    const std::vector<float> piece = make_piece(Data::kHeavyTail, 128 * 5 + 5, 15);
    const std::vector<float> zeros(piece.size());
    std::vector<float> residual(piece.size());
    std::vector<float> arrived(piece.size());
    for (uint64_t step = 0; step < 200; ++step) {
      const PacketContext context = {.unit_hash = 1, .step = step};
      Packet packet = encoded(codec, step == 0 ? piece : zeros, residual, context);
      codec.decode_sum(packet.buffer(), 1, buffer_of(arrived), context, {});
    }
    EXPECT_LT(relative_error(piece, arrived), 1e-9) << bits;
  }
}

}  // namespace
}  // namespace isthmus
