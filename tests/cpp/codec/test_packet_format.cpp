// Holds the worked examples of docs/packet_format.md true: their bytes are what the codecs produce.
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <cstdio>
#include <fstream>
#include <limits>
#include <memory>
#include <string>
#include <vector>

#include "codec/weights/weight_packet.h"
#include "isthmus/codec.h"
#include "tests/cpp/support/packets.h"

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
  std::vector<uint8_t> packet(WeightPackets::most_bytes(view(after)) + WeightPackets::kMarginBytes);
  packet.resize(WeightPackets().encode(view(before), view(after),
                                       {packet.data(), WeightPackets::most_bytes(view(after)), DataType::kByte}));
  EXPECT_EQ(dump(packet), example_in_docs("weights"));
}

}  // namespace
}  // namespace isthmus
