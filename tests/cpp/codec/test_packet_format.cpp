// Holds docs/packet_format.md true: codecs produce the bytes of its worked examples, and its checksum finds damage.
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <cstdio>
#include <fstream>
#include <limits>
#include <memory>
#include <random>
#include <string>
#include <vector>

#include "isthmus/codec.h"
#include "kernels/checksum/cpu.h"
#include "tests/cpp/codec/packet_reference.h"
#include "tests/cpp/support/instruction_sets.h"
#include "tests/cpp/support/packets.h"
#include "tests/cpp/support/weights.h"

namespace isthmus {
namespace {

constexpr PacketContext kContext = {.unit_hash = 0x1122334455667788, .step = 9, .sender = 3};

// The fenced block that follows the line "<!-- example: NAME -->".
std::string example_in_docs(const std::string& name) {
  std::ifstream file(ISTHMUS_SOURCE_DIR "/docs/packet_format.md");
  std::string line;
  while (std::getline(file, line) && line != "<!-- example: " + name + " -->") {
  }
  std::getline(file, line);  // the fence
  std::string block;
  while (std::getline(file, line) && line != "```") {
    block += line + "\n";
  }
  return block;
}

// 16 bytes a line after their offset, both in hexadecimal; lines of zeros are left out.
std::string dump(const std::vector<uint8_t>& bytes) {
  std::string text;
  for (size_t offset = 0; offset < bytes.size(); offset += 16) {
    char number[32];
    std::snprintf(number, sizeof(number), "%04zx ", offset);
    std::string line = number;
    bool all_zero = true;
    for (size_t byte = offset; byte < std::min(offset + 16, bytes.size()); ++byte) {
      std::snprintf(number, sizeof(number), " %02x", bytes[byte]);
      line += number;
      all_zero = all_zero && bytes[byte] == 0;
    }
    text += all_zero ? "" : line + "\n";
  }
  return text;
}

std::vector<uint8_t> encoded(HostCodec& codec, const std::vector<float>& piece) {
  std::vector<float> residual(codec.keeps_residual() ? piece.size() : 0);
  Packet packet = new_packet(codec, static_cast<int64_t>(piece.size()));
  encode(codec, piece, residual, packet, kContext);
  return packet.copy();
}

TEST(PacketFormat, ExampleOfCodecNone) {
  const std::unique_ptr<HostCodec> codec = make_codec("none", Options(), DataType::kBFloat16, 4);
  EXPECT_EQ(dump(encoded(*codec, {1.0F, -2.0F, 0.5F})), example_in_docs("none"));
}

TEST(PacketFormat, ExampleOfCodecTagc) {
  Options options;
  options.ratio = 4;
  options.sparsity = .98;
  const std::unique_ptr<HostCodec> codec = make_codec("tagc", options, DataType::kFloat32, 4);
  std::vector<float> piece(130, .25F);
  piece[5] = 1.5F;
  piece[70] = -2.0F;
  piece[129] = std::numeric_limits<float>::quiet_NaN();
  const std::vector<uint8_t> packet = encoded(*codec, piece);
  EXPECT_EQ(packet.size(), 960);
  EXPECT_EQ(dump(packet), example_in_docs("tagc"));
}

TEST(PacketFormat, ExampleOfCodecQuant) {
  Options options;
  options.bits = 2;
  const std::unique_ptr<HostCodec> codec = make_codec("quant", options, DataType::kFloat32, 4);
  std::vector<float> piece(259);
  piece[1] = 1.5F;
  piece[200] = std::numeric_limits<float>::quiet_NaN();
  piece[257] = -2.0F;
  const std::vector<uint8_t> packet = encoded(*codec, piece);
  EXPECT_EQ(packet.size(), 320);
  EXPECT_EQ(dump(packet), example_in_docs("quant"));
}

TEST(PacketFormat, ExampleOfWeights) {
  const std::vector<uint16_t> before(40, 0x3e80);  // .25
  std::vector<uint16_t> after = before;
  after[3] += 1;
  after[20] = 0xc000;  // -2
  const auto view = [](const std::vector<uint16_t>& weights) {
    return ConstBuffer{weights.data(), static_cast<int64_t>(weights.size()), DataType::kBFloat16};
  };
  EXPECT_EQ(dump(test::packet_of(view(before), view(after))), example_in_docs("weights"));
}

constexpr int64_t kMostWords = 150;  // more than twice what is summed at once

std::vector<uint8_t> random_bytes(int64_t num_bytes, uint32_t seed) {
  std::mt19937 random(seed);
  std::vector<uint8_t> bytes(num_bytes);
  std::generate(bytes.begin(), bytes.end(), [&] { return static_cast<uint8_t>(random()); });
  return bytes;
}

uint64_t checksum_of(const std::vector<uint8_t>& bytes) {
  Checksum checksum;
  checksum.add(bytes.data(), static_cast<int64_t>(bytes.size()));
  return checksum.value();
}

TEST(Checksum, IsThatOfTheDocumentInEveryInstructionSet) {
  in_every_instruction_set([] {
    for (int64_t num_words = 0; num_words <= kMostWords; ++num_words) {
      for (const int64_t misaligned : {0, 1, 8}) {
        const std::vector<uint8_t> bytes = random_bytes(misaligned + 8 * num_words, static_cast<uint32_t>(num_words));
        const uint64_t expected = reference::checksum_of_docs(bytes, misaligned);
        Checksum checksum;
        checksum.add(bytes.data() + misaligned, 8 * num_words);
        EXPECT_EQ(checksum.value(), expected) << num_words << " words";
        std::vector<uint8_t> copy(8 * num_words + 2, 7);
        Checksum of_copied;
        of_copied.copy(bytes.data() + misaligned, copy.data() + 1, 8 * num_words);
        EXPECT_EQ(of_copied.value(), expected) << num_words << " words";
        EXPECT_TRUE(std::equal(bytes.begin() + misaligned, bytes.end(), copy.begin() + 1));
        EXPECT_TRUE(copy.front() == 7 && copy.back() == 7) << num_words << " words";
      }
    }
  });
}

TEST(Checksum, IsTheSumOfItsPartsInEveryInstructionSet) {
  const std::vector<uint8_t> bytes = random_bytes(8 * kMostWords, 2);
  in_every_instruction_set([&] {
    for (int64_t first = 0; first <= kMostWords; ++first) {
      Checksum second(first);
      second.add(bytes.data() + 8 * first, 8 * (kMostWords - first));
      Checksum begin;
      begin.add(bytes.data(), 8 * first);
      EXPECT_EQ(second.value() + begin.value(), checksum_of(bytes)) << first;
    }
  });
}

// Mostly zeros, as an index has: every bit, and pairs of bits as far apart as lanes and words are.
TEST(Checksum, FindsOneOrTwoFlippedBits) {
  std::vector<uint8_t> bytes = random_bytes(8 * kMostWords, 3);
  for (size_t i = 0; i < bytes.size(); ++i) {
    bytes[i] = i % 40 == 3 ? bytes[i] : 0;
  }
  const uint64_t right = checksum_of(bytes);
  const auto flip = [&](size_t bit) { bytes[bit / 8] ^= static_cast<uint8_t>(1 << bit % 8); };
  for (size_t bit = 0; bit < 8 * bytes.size(); ++bit) {
    flip(bit);
    EXPECT_NE(checksum_of(bytes), right) << bit;
    for (const size_t other : {bit + 1, bit + 32, bit + 64, bit + 512, bit + 4096}) {
      if (other < 8 * bytes.size()) {
        flip(other);
        EXPECT_NE(checksum_of(bytes), right) << bit << ' ' << other;
        flip(other);
      }
    }
    flip(bit);
  }
}

}  // namespace
}  // namespace isthmus
