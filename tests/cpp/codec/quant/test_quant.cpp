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

#include "codec/quant/host.h"
#include "communicator/scratch.h"
#include "isthmus/error.h"
#include "kernels/block/instruction_set.h"
#include "tests/cpp/codec/quant/quant_reference.h"
#include "tests/cpp/codec/tagc/tagc_data.h"

namespace isthmus {
namespace {

constexpr float kNan = std::numeric_limits<float>::quiet_NaN();
constexpr float kInfinity = std::numeric_limits<float>::infinity();
constexpr float kMax = std::numeric_limits<float>::max();
constexpr PacketContext kContext = {.unit_hash = 0xfedcba9876543210, .step = 7, .segment = 2, .sender = 5};
constexpr int kWidths[] = {1, 2, 3, 4, 8};
const std::string kScales[] = {"absmax", "least_error", "unbiased"};

Options options_of(int64_t bits, bool rotate = true, int64_t group_elements = 128,
                   const std::string& scale = "least_error") {
  Options options;
  options.bits = bits;
  options.rotate = rotate;
  options.group_elements = group_elements;
  options.scale = scale;
  return options;
}

Options with_feedback(Options options) {
  options.error_feedback = "on";
  return options;
}

Options with_noise(Options options) {
  options.rounding = "stochastic";
  return options;
}

reference::QuantParameters parameters_of(const Options& options, PacketContext context = kContext) {
  return {.bits = static_cast<int>(options.bits),
          .group_elements = options.group_elements,
          .rotate = options.rotate,
          .stochastic = options.rounding == "stochastic",
          .scale = options.scale,
          .bfloat16_scales = options.scale_type == "bf16",
          .error_feedback = options.error_feedback == "on",
          .unit_hash = context.unit_hash,
          .step = context.step,
          .segment = context.segment,
          .sender = context.sender};
}

// A packet as the contract wants it: 64-byte aligned, and dirty before it is written.
struct Packet {
  explicit Packet(int64_t num_bytes) : memory(allocate_aligned(num_bytes)), bytes(num_bytes) {
    std::memset(memory.get(), 0xa5, num_bytes);
  }
  uint8_t* data() { return reinterpret_cast<uint8_t*>(memory.get()); }
  std::vector<uint8_t> copy() { return {data(), data() + bytes}; }
  Buffer buffer() { return {memory.get(), bytes, DataType::kByte}; }

  AlignedMemory memory;
  int64_t bytes;
};

Buffer buffer_of(std::vector<float>& values) {
  return {values.data(), static_cast<int64_t>(values.size()), DataType::kFloat32};
}
ConstBuffer buffer_of(const std::vector<float>& values) {
  return {values.data(), static_cast<int64_t>(values.size()), DataType::kFloat32};
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

// Which NaN it is says nothing.
std::vector<uint32_t> bits_of(const std::vector<float>& values) {
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
    ASSERT_EQ(bits_of(residual), bits_of(expected_residual));
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
    ASSERT_EQ(bits_of(out), bits_of(sum));
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
  const auto in_use = kernels::instruction_set();
  for (const kernels::InstructionSet wanted : kernels::available_instruction_sets()) {
    SCOPED_TRACE(kernels::to_string(wanted));
    kernels::set_instruction_set(wanted);
    expect_all_settings_equal_to_reference(700);
    for (int64_t group = 32; group <= 512; group *= 2) {
      for (const bool rotate : {false, true}) {
        expect_equal_to_reference(options_of(4, rotate, group), Data::kHeavyTail, 20001);
      }
    }
  }
  kernels::set_instruction_set(in_use);
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
    double error;
  };
  const std::vector<float> normal = normal_values(100 * 512, 9);
  // Rotation makes of anything what a normal distribution would be.
  std::vector<float> outliers = normal;
  for (size_t i = 0; i < outliers.size(); i += 50) {
    outliers[i] *= 20;
  }
  for (const Row& row : {Row{1, .363}, Row{2, .1188}, Row{3, .0374}, Row{4, .0115}}) {
    const Options options = options_of(row.bits, true, 512);
    EXPECT_NEAR(relative_error(normal, sent(options, normal)), row.error, .05 * row.error) << row.bits;
    EXPECT_NEAR(relative_error(outliers, sent(options, outliers)), row.error, .25 * row.error) << row.bits;
  }
  EXPECT_LT(relative_error(normal, sent(options_of(8), normal)), 1e-4);
  // An unbiased estimate has the error e / (1 - e).
  EXPECT_NEAR(relative_error(normal, sent(options_of(1, true, 512, "unbiased"), normal)), .571, .03);
}

TEST(Quant, LeastErrorIsLeast) {
  for (const int bits : kWidths) {
    for (const bool rotate : {false, true}) {
      const std::vector<float> piece = make_piece(Data::kHeavyTail, 128 * 100, 10);
      const auto error_of = [&](const std::string& scale) {
        return relative_error(piece, sent(options_of(bits, rotate, 128, scale), piece));
      };
      EXPECT_LE(error_of("least_error"), error_of("unbiased")) << bits;
      EXPECT_LE(error_of("least_error"), (rotate ? 1.1 : 1.2) * error_of("absmax")) << bits;
    }
  }
}

// The mean over many steps, each with other signs and other noise, of what arrives of one piece.
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

double relative_error_of_mean(const std::vector<float>& piece, const std::vector<double>& mean) {
  return relative_error(piece, std::vector<float>(mean.begin(), mean.end()));
}

TEST(Quant, UnbiasedOverRotations) {
  constexpr int kSteps = 600;
  const std::vector<float> piece = make_piece(Data::kHeavyTail, 128 * 8, 13);
  for (const int bits : {1, 2, 3, 4}) {
    const std::vector<double> unbiased = mean_arrived(options_of(bits, true, 128, "unbiased"), piece, kSteps);
    // The error of one step, .57 at one bit, falls with the number of steps.
    EXPECT_NEAR(projection(piece, unbiased), 1, .005) << bits;
    EXPECT_LT(relative_error_of_mean(piece, unbiased), .004) << bits;
  }
  const std::vector<double> least = mean_arrived(options_of(1), piece, kSteps);
  EXPECT_NEAR(projection(piece, least), 1 - .363, .05);
}

TEST(Quant, StochasticRoundingIsUnbiased) {
  constexpr int kSteps = 600;
  const std::vector<float> piece = make_piece(Data::kHeavyTail, 128 * 8, 14);
  for (const int bits : {2, 3, 4, 8}) {
    const Options nearest = options_of(bits, false, 128, "absmax");
    const std::vector<double> mean = mean_arrived(with_noise(nearest), piece, kSteps);
    const double of_one_step = relative_error(piece, sent(with_noise(nearest), piece));
    EXPECT_LT(relative_error_of_mean(piece, mean), 3 * of_one_step / kSteps + 1e-9) << bits;
    EXPECT_GT(relative_error_of_mean(piece, mean_arrived(nearest, piece, 2)), 20 * of_one_step / kSteps) << bits;
  }
}

TEST(Quant, RandomBitsDependOnUnitStepSegmentSenderAndBlock) {
  const std::vector<float> piece(1024, 1.0F);
  const auto codes_of = [&](const Options& options, PacketContext context) {
    QuantCodec codec(options);
    std::vector<float> none;
    const std::vector<uint8_t> packet = encoded(codec, piece, none, context).copy();
    return std::vector<uint8_t>(packet.begin() + 128, packet.end());
  };
  for (const Options& options : {options_of(4), with_noise(options_of(4, false, 128, "unbiased"))}) {
    const std::vector<uint8_t> codes = codes_of(options, {1, 1, 0});
    EXPECT_EQ(codes, codes_of(options, {1, 1, 0}));
    EXPECT_NE(codes, codes_of(options, {2, 1, 0}));
    EXPECT_NE(codes, codes_of(options, {1, 2, 0}));
    EXPECT_NE(codes, codes_of(options, {1, 1, 1}));
    EXPECT_NE(codes, codes_of(options, {1, 1, 0, 1}));
    EXPECT_NE(codes_of(options, {1, 1, 0, 1}), codes_of(options, {1, 1, 1, 0}));
    EXPECT_FALSE(std::equal(codes.begin(), codes.begin() + 256, codes.begin() + 256));
  }
}

// What is lost in one step arrives in later ones.
TEST(Quant, ErrorFeedbackSendsTheRestLater) {
  for (const int bits : kWidths) {
    for (const bool rotate : {false, true}) {
      QuantCodec codec(with_feedback(options_of(bits, rotate, 32)));
      const std::vector<float> piece = make_piece(Data::kHeavyTail, 32 * 20 + 5, 15);
      const std::vector<float> zeros(piece.size());
      std::vector<float> residual(piece.size());
      std::vector<float> arrived(piece.size());
      for (uint64_t step = 0; step < 200; ++step) {
        const PacketContext context = {.unit_hash = 1, .step = step};
        Packet packet = encoded(codec, step == 0 ? piece : zeros, residual, context);
        codec.decode_sum(packet.buffer(), 1, buffer_of(arrived), context, {});
      }
      EXPECT_LT(relative_error(piece, arrived), 1e-9) << bits << (rotate ? ", rotated" : "");
    }
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
