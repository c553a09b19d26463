#include <gtest/gtest.h>

#include <cmath>
#include <string>
#include <vector>

#include "isthmus/codec.h"
#include "isthmus/error.h"
#include "kernels/none/host.h"
#include "tests/cpp/support/error_of.h"
#include "tests/cpp/support/typed_data.h"

namespace isthmus::test {
namespace {

constexpr PacketContext kContext{0x0123456789abcdef, 42};

std::vector<std::byte> encode(NoneCodec& codec, const Array& piece, PacketContext context = kContext) {
  const auto packet_bytes = codec.packet_bytes(piece.view().num_elements);
  std::vector<std::byte> packet(static_cast<size_t>(packet_bytes), std::byte{0xee});
  codec.encode(piece.view(), {}, {packet.data(), packet_bytes, DataType::kByte}, context, {});
  return packet;
}

void decode_sum(NoneCodec& codec, const std::vector<std::byte>& packets, int num_packets, Array& out,
                PacketContext context = kContext) {
  codec.decode_sum({packets.data(), static_cast<int64_t>(packets.size()), DataType::kByte}, num_packets, out.buffer(),
                   context, {});
}

TEST(None, DecodingAddsEveryPacketInOrder) {
  for (const DataType wire : kFloatingTypes) {
    for (const int64_t count : {0, 1, 3, 1024, 2049}) {
      NoneCodec codec(wire, 2);
      const DataType sum_dtype = accumulate_dtype(wire);
      std::vector<std::byte> packets;
      std::vector<double> expected(static_cast<size_t>(count), 1.0);
      for (int sender = 0; sender < 3; ++sender) {
        // Small integers, exact in every type.
        std::vector<double> values(static_cast<size_t>(count));
        for (int64_t i = 0; i < count; ++i) {
          values[i] = static_cast<double>((5 * sender + i) % 17 - 8);
          expected[i] += values[i];
        }
        const std::vector<std::byte> packet = encode(codec, Array(values, sum_dtype), kContext.of_packet(sender));
        packets.insert(packets.end(), packet.begin(), packet.end());
      }
      Array out(std::vector<double>(static_cast<size_t>(count), 1.0), sum_dtype);
      decode_sum(codec, packets, 3, out);
      EXPECT_EQ(out.values(), expected) << to_string(wire) << ", " << count;
    }
  }
}

TEST(None, ValuesOfTheWireTypeAreExactAndOthersRoundedOnce) {
  for (const DataType wire : kFloatingTypes) {
    NoneCodec codec(wire, 8);
    const DataType piece_dtype = accumulate_dtype(wire);
    std::vector<double> values = random_values(1000, 1);
    for (double& value : values) {
      value += std::copysign(0.01, value);  // normal numbers in float16, after the division by 8 too
    }
    const Array piece(values, piece_dtype);
    Array decoded(1000, piece_dtype);
    decode_sum(codec, encode(codec, piece), 1, decoded);
    const Array rounded(piece.values(), wire);
    EXPECT_EQ(decoded.values(), rounded.values()) << to_string(wire);
  }
}

TEST(None, SumsOfLargeFloat16ValuesDoNotOverflow) {
  for (const int ranks_per_node : {1, 2, 3, 8}) {
    NoneCodec codec(DataType::kFloat16, ranks_per_node);
    const Array piece({65504.0 * ranks_per_node, -65504.0 * ranks_per_node}, DataType::kFloat32);
    Array decoded(2, DataType::kFloat32);
    decode_sum(codec, encode(codec, piece), 1, decoded);
    for (int i = 0; i < 2; ++i) {
      EXPECT_NEAR(decoded.values()[i], piece.values()[i], 0x1p-11 * 65504 * ranks_per_node) << ranks_per_node;
    }
  }
}

TEST(None, ForeignPacketsAreRefusedAndTheFieldIsNamed) {
  NoneCodec codec(DataType::kFloat32, 1);
  const std::vector<std::byte> packet = encode(codec, Array({1, 2}, DataType::kFloat32));
  struct Case {
    int64_t byte;
    const char* field;
  };
  for (const auto& [byte, field] :
       {Case{0, "magic"}, Case{4, "version"}, Case{5, "codec"}, Case{6, "dtype"}, Case{8, "unit"}, Case{16, "step"},
        Case{24, "number of elements"}, Case{32, "settings"}, Case{7, "segment"}}) {
    std::vector<std::byte> foreign = packet;
    foreign[byte] ^= std::byte{0x80};
    Array out(2, DataType::kFloat32);
    const std::string error = error_of<PacketError>([&] { decode_sum(codec, foreign, 1, out); });
    EXPECT_NE(error.find(std::string("packet with ") + field), std::string::npos) << field << ": " << error;
  }
}

TEST(None, OnlyFloatingTypes) {
  EXPECT_THROW(NoneCodec(DataType::kByte, 1), Error);
  EXPECT_THROW(NoneCodec(DataType::kFloat32, 0), Error);
  EXPECT_THROW(make_codec("zstd", Options(), DataType::kFloat32, 1), OptionError);
  EXPECT_STREQ(make_codec("none", Options(), DataType::kFloat32, 1)->name(), "none");
}

}  // namespace
}  // namespace isthmus::test
