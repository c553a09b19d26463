// What codec sparse refuses: damaged and forged packets, wrong buffers and options.
#include <gtest/gtest.h>

#include <cstdint>
#include <limits>
#include <random>
#include <string>
#include <vector>

#include "isthmus/error.h"
#include "tests/cpp/codec/pieces.h"
#include "tests/cpp/codec/sparse/sparse_packets.h"

namespace isthmus {
namespace {

constexpr float kNan = std::numeric_limits<float>::quiet_NaN();

TEST(Sparse, RejectsWrongBuffersAndOptions) {
  SparseCodec codec(sparse_options(.9));
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
  SparseCodec without(sparse_options(.9, "bf16", "off"));
  EXPECT_THROW(encode(without, piece, residual, packet), Error);
  EXPECT_THROW(SparseCodec(sparse_options(1)), OptionError);
  EXPECT_THROW(SparseCodec(sparse_options(-.1)), OptionError);
  EXPECT_THROW(SparseCodec(sparse_options(.9, "int7")), OptionError);
}

// A packet of two whole blocks, a flagged one and 100 elements: sections of 16, 8, 328 bytes and so on.
class SparseCorruption : public testing::Test {
 protected:
  static constexpr int64_t kElements = 3 * 1024 + 100;
  static constexpr int64_t kCounts = 48;
  static constexpr int64_t kScales = kCounts + 4 * 4;
  static constexpr int64_t kOffsets = kScales + 2 * 4;
  static constexpr int64_t kKeep = 102;
  static constexpr int64_t kValues = kOffsets + 320;  // 3 * 102 + 10, and 4 bytes of padding

  SparseCorruption() : codec_(sparse_options(.9, "int8")), packet_(codec_.packet_bytes(kElements)) {
    std::vector<float> piece = make_piece(Data::kHeavyTail, kElements, 14);
    piece[1024 + 200] = kNan;
    std::vector<float> residual(kElements);
    encode(codec_, piece, residual, packet_);
  }

  // What decoding of the forged packet throws; "" for nothing.
  std::string message(PacketContext context = kContext) {
    // Nothing is written outside: the sanitizers watch, and so do these.
    std::vector<float> out(kElements + 2048);
    std::string text;
    try {
      codec_.decode_sum(packet_.buffer(), 1, buffer_of(out).slice(1024, kElements), context, {});
    } catch (const PacketError& error) {
      text = error.what();
    }
    for (int64_t i = 0; i < 1024; ++i) {
      EXPECT_EQ(out[i], 0);
      EXPECT_EQ(out[1024 + kElements + i], 0);
    }
    return text;
  }
  void expect_refused(const char* why) {
    reseal(packet_);
    EXPECT_NE(message().find(why), std::string::npos) << message();
  }

  SparseCodec codec_;
  Packet packet_;
};

TEST_F(SparseCorruption, EverySingleFlippedBitIsFound) {
  EXPECT_EQ(message(), "");
  for (int64_t bit = 0; bit < 8 * packet_.bytes; ++bit) {
    packet_.data()[bit / 8] ^= static_cast<uint8_t>(1 << bit % 8);
    EXPECT_NE(message(), "") << "bit " << bit;
    packet_.data()[bit / 8] ^= static_cast<uint8_t>(1 << bit % 8);
  }
}

TEST_F(SparseCorruption, CountsThatDoNotAddUp) {
  packet_.data()[kCounts] += 1;
  expect_refused("a block's counts do not add up to what it keeps");
}

TEST_F(SparseCorruption, CountsThatMoveAnElementToAnotherQuarter) {
  packet_.data()[kCounts] += 1;
  packet_.data()[kCounts + 1] -= 1;
  packet_.data()[kOffsets + packet_.data()[kCounts] - 1] = 0;
  expect_refused("a block's offsets do not ascend within it");
}

TEST_F(SparseCorruption, OffsetsThatRepeat) {
  packet_.data()[kOffsets + 1] = packet_.data()[kOffsets];
  expect_refused("a block's offsets do not ascend within it");
}

TEST_F(SparseCorruption, OffsetsThatDescend) {
  std::swap(packet_.data()[kOffsets], packet_.data()[kOffsets + 1]);
  expect_refused("a block's offsets do not ascend within it");
}

TEST_F(SparseCorruption, OffsetsPastTheLastElement) {
  packet_.data()[kOffsets + 3 * kKeep + 9] = 100;
  expect_refused("a block's offsets do not ascend within it");
}

TEST_F(SparseCorruption, CountsInAQuarterPastTheLastElement) {
  uint8_t* counts = packet_.data() + kCounts + 3 * 4;
  std::swap(counts[0], counts[3]);
  expect_refused("a block's offsets do not ascend within it");
}

TEST_F(SparseCorruption, AFlaggedBlockThatHoldsSomething) {
  for (const int64_t byte : {kOffsets + kKeep, kOffsets + 2 * kKeep - 1, kValues + kKeep, kValues + 2 * kKeep - 1,
                             kScales + 2, kScales + 3}) {
    packet_.data()[byte] = 1;
    expect_refused("a flagged block holds values");
    packet_.data()[byte] = 0;
  }
  reseal(packet_);
  EXPECT_EQ(message(), "");
}

TEST_F(SparseCorruption, PaddingThatIsNotZero) {
  for (const int64_t byte : {kValues - 1, packet_.bytes - 1}) {
    packet_.data()[byte] = 1;
    expect_refused("its padding is not zero");
    packet_.data()[byte] = 0;
  }
}

// Whatever bytes with a right checksum: refused, or decoded within the piece.
TEST_F(SparseCorruption, ForgedBytesNeverWriteOutside) {
  std::mt19937 random(15);
  const std::vector<uint8_t> good = packet_.copy();
  for (int trial = 0; trial < 2000; ++trial) {
    std::copy(good.begin(), good.end(), packet_.data());
    for (auto edits = random() % 4 + 1; edits > 0; --edits) {
      packet_.data()[48 + random() % (trial % 2 == 0 ? 340 : packet_.bytes - 48)] = static_cast<uint8_t>(random());
    }
    reseal(packet_);
    message();
  }
}

TEST_F(SparseCorruption, AnotherUnitStepSegmentOrSettingIsNamed) {
  PacketContext other = kContext;
  other.unit_hash += 1;
  EXPECT_NE(message(other).find("unit"), std::string::npos);
  other = kContext;
  other.step += 1;
  EXPECT_NE(message(other).find("step 7 where 8"), std::string::npos);
  other = kContext;
  other.segment += 1;
  EXPECT_NE(message(other).find("segment 3 where 4"), std::string::npos);
  packet_.data()[36] = 2;  // values in bfloat16
  EXPECT_NE(message().find("settings"), std::string::npos);
}

}  // namespace
}  // namespace isthmus
