#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>
#include <limits>
#include <random>
#include <vector>

#include "isthmus/error.h"
#include "kernels/weights/layout.h"
#include "tests/cpp/support/instruction_sets.h"
#include "tests/cpp/support/weights.h"

namespace isthmus::test {
namespace {

constexpr int64_t kBlock = kernels::kWeightBlockElements;
constexpr int64_t kWord = kernels::kWeightWordElements;
constexpr int64_t kSizes[] = {1,         15,         16,     17,         kWord - 1,       kWord,
                              kWord + 1, kBlock - 3, kBlock, kBlock + 1, 3 * kBlock + 777};

std::vector<uint8_t> encoded(const Array& before, const Array& now) {
  std::vector<uint8_t> packet = packet_of(before.view(), now.view());
  EXPECT_LE(static_cast<int64_t>(packet.size()), WeightPackets::most_bytes(now.view()));
  return packet;
}

// Encodes and decodes with every instruction set; all make the same bytes.
std::vector<uint8_t> expect_exact(const Array& before, const Array& now) {
  std::vector<uint8_t> first;
  in_every_instruction_set([&] {
    const std::vector<uint8_t> packet = encoded(before, now);
    EXPECT_TRUE(first.empty() || packet == first) << "other bytes than the first instruction set";
    first = packet;
    Array replica = before;
    if (!packet.empty()) {
      decode_into(replica.buffer(), packet);
    }
    EXPECT_TRUE(replica.bytes() == now.bytes());
  });
  return first;
}

TEST(WeightPackets, StepsOfAllSizesComeThroughBitForBit) {
  for (const DataType dtype : kCodedTypes) {
    for (const int64_t count : kSizes) {
      for (const double learning_rate : {0.0, 1e-7, 1e-5, 1e-3, 0.1, 10.0}) {
        SCOPED_TRACE(testing::Message() << count << " of " << to_string(dtype) << " at " << learning_rate);
        const std::vector<double> before = weights(count);
        const auto packet = expect_exact({before, dtype}, {moved(before, learning_rate), dtype});
        EXPECT_TRUE(learning_rate > 0 || packet.empty());
      }
    }
  }
}

TEST(WeightPackets, WhatIsEqualBitForBitTakesNothing) {
  const double nan = std::numeric_limits<double>::quiet_NaN();
  for (const DataType dtype : {DataType::kBFloat16, DataType::kFloat32, DataType::kFloat64}) {
    const Array values(std::vector<double>{0, -0.0, nan, 1, -1e-30}, dtype);
    EXPECT_TRUE(encoded(values, values).empty());
  }
  const Array zero(std::vector<double>{0}, DataType::kBFloat16);
  const Array minus_zero(std::vector<double>{-0.0}, DataType::kBFloat16);
  EXPECT_FALSE(expect_exact(zero, minus_zero).empty()) << "equal values, and not equal bits";
}

// Every pattern of 16 bits, from and to patterns of all kinds: NaN of every payload, both zeros, denormals, Inf.
TEST(WeightPackets, EveryPatternOf16BitsComesThrough) {
  std::mt19937 generator(7);
  for (const DataType dtype : {DataType::kBFloat16, DataType::kFloat16}) {
    for (const uint32_t distance : {1U, 3U, 100U, 0x8000U, 0U}) {
      Array before(65536, dtype);
      Array now(65536, dtype);
      auto* const from = before.buffer().as<uint16_t>();
      auto* const to = now.buffer().as<uint16_t>();
      for (uint32_t pattern = 0; pattern < 65536; ++pattern) {
        from[pattern] = static_cast<uint16_t>(pattern);
        to[pattern] = static_cast<uint16_t>(distance == 0 ? generator() : pattern + distance);
      }
      SCOPED_TRACE(testing::Message() << to_string(dtype) << " by " << distance);
      expect_exact(before, now);
      expect_exact(now, before);
    }
  }
}

TEST(WeightPackets, RandomPatternsOf32BitsComeThrough) {
  std::mt19937 generator(8);
  Array before(kBlock + 100, DataType::kFloat32);
  Array now = before;
  for (int64_t i = 0; i < before.view().num_elements; ++i) {
    before.buffer().as<uint32_t>()[i] = generator();
    now.buffer().as<uint32_t>()[i] = i % 3 == 0 ? generator() : before.buffer().as<uint32_t>()[i] + generator() % 9;
  }
  expect_exact(before, now);
}

// A few that leap, among many that move a little, take no more than their own bits.
TEST(WeightPackets, LeapsAreFew) {
  for (const DataType dtype : kCodedTypes) {
    const std::vector<double> before = weights(kBlock);
    std::vector<double> after = moved(before, 1e-5);
    for (size_t i = 0; i < after.size(); i += 1000) {
      after[i] = i % 2000 == 0 ? 1000 : std::numeric_limits<double>::infinity();
    }
    const auto packet = expect_exact({before, dtype}, {after, dtype});
    EXPECT_LT(packet.size(), after.size() * element_bytes(dtype) / 2);
  }
}

// The entropy of such steps, given the old exponent, is .318, .655, 1.337, 2.340 and 3.171 bits.
TEST(WeightPackets, BitsAreCloseToTheEntropy) {
  constexpr int64_t kCount = 8 * kBlock;
  const std::vector<std::pair<double, double>> measured = {
      {1e-5, .348}, {3e-5, .713}, {1e-4, 1.441}, {3e-4, 2.528}, {6e-4, 3.434}};
  for (const auto& [learning_rate, bits] : measured) {
    const std::vector<double> before = weights(kCount);
    const auto packet = encoded({before, DataType::kBFloat16}, {moved(before, learning_rate), DataType::kBFloat16});
    EXPECT_NEAR(8.0 * static_cast<double>(packet.size()) / kCount, bits, .01 * bits) << learning_rate;
  }
}

// FSDP2 fills shards up with zeros, and a bias may be zero at first.
TEST(WeightPackets, PaddingCostsNextToNothing) {
  std::vector<double> before(kBlock);
  const std::vector<double> some = weights(64);
  std::copy(some.begin(), some.end(), before.begin());
  std::vector<double> after = before;
  const std::vector<double> there = moved(some, 1e-3);
  std::copy(there.begin(), there.end(), after.begin());
  EXPECT_LT(expect_exact({before, DataType::kBFloat16}, {after, DataType::kBFloat16}).size(), 300);
}

TEST(WeightPackets, WhatDoesNotPayGoesWhole) {
  std::mt19937 generator(9);
  for (const DataType dtype : {DataType::kBFloat16, DataType::kFloat32, DataType::kFloat64, DataType::kByte}) {
    Array before(5 * kBlock + 3, dtype);
    Array now = before;
    for (std::byte& value : now.bytes()) {
      value = static_cast<std::byte>(generator());
    }
    const auto packet = expect_exact(before, now);
    EXPECT_LE(packet.size(), now.bytes().size() * 101 / 100 + 64) << to_string(dtype);
    EXPECT_GE(packet.size(), now.bytes().size()) << to_string(dtype);
  }
}

// Only the last block changed: of the others the packet says so alone.
TEST(WeightPackets, UnchangedBlocksTakeFourBytes) {
  for (const DataType dtype : {DataType::kBFloat16, DataType::kFloat64}) {
    std::vector<double> values = weights(9 * kBlock + 1);
    const Array before(values, dtype);
    values.back() += 1;
    EXPECT_LE(expect_exact(before, {values, dtype}).size(), 10 * 4 + 16) << to_string(dtype);
  }
}

// A block of zeros that is told by one string, of gaps, with one gap: so many times 2^14 zeros.
std::vector<uint8_t> packet_of_a_gap(uint64_t quotient) {
  constexpr uint64_t kClasses = 1;
  constexpr uint64_t kLowBits = 14;
  const uint64_t unary_bits = quotient + 1;
  const uint64_t block = kClasses | kLowBits << 2 | unary_bits << 7 | uint64_t{1} << (22 + quotient);
  std::vector<uint8_t> packet(16);
  packet[0] = 6;  // the block's bytes
  std::memcpy(packet.data() + 4, &block, 6);
  return packet;
}

TEST(WeightPackets, AOneOutsideOfItsStringIsRefused) {
  in_every_instruction_set([] {
    Array replica(kBlock, DataType::kBFloat16);
    decode_into(replica.buffer(), packet_of_a_gap(0));
    EXPECT_EQ(replica.view().as<uint16_t>()[0], 1) << "the first one moves by one";
    EXPECT_THROW(decode_into(replica.buffer(), packet_of_a_gap(1)), PacketError);
    EXPECT_THROW(decode_into(replica.buffer(), packet_of_a_gap(2)), PacketError);
  });
}

// Any byte that changes is an error, or decodes inside the block: nothing is read or written outside (under ASan). What
// is no error, checksums find before a packet is decoded.
TEST(WeightPackets, DamagedPacketsDoNotLeaveTheirBlock) {
  std::mt19937 generator(10);
  for (const DataType dtype : kCodedTypes) {
    const std::vector<double> before = weights(kBlock + 500);
    const Array old_weights(before, dtype);
    const Array new_weights(moved(before, 1e-4), dtype);
    const auto packet = encoded(old_weights, new_weights);
    const std::vector<double> expected = new_weights.values();
    for (int i = 0; i < 300; ++i) {
      std::vector<uint8_t> damaged = packet;
      if (i % 3 == 0) {
        damaged.resize(generator() % packet.size() / 8 * 8);
      } else {
        damaged[i % 3 == 1 ? generator() % 60 : generator() % damaged.size()] ^=
            static_cast<uint8_t>(1 + generator() % 255);
      }
      Array replica = old_weights;
      try {
        decode_into(replica.buffer(), damaged);
        EXPECT_NE(i % 3, 0) << "cut to " << damaged.size() << " of " << packet.size() << " bytes";
        const std::vector<double> values = replica.values();
        const bool is_first_right = std::equal(values.begin(), values.begin() + kBlock, expected.begin());
        const bool is_second_right = std::equal(values.begin() + kBlock, values.end(), expected.begin() + kBlock);
        EXPECT_TRUE(is_first_right || is_second_right) << to_string(dtype) << ", packet " << i;
      } catch (const PacketError&) {
      }
    }
  }
}

}  // namespace
}  // namespace isthmus::test
