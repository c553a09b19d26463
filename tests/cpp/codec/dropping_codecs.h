// What tests of tagc and sparse on the CPU share: codecs that send some elements and keep the others.
#pragma once

#include <gtest/gtest.h>

#include <cstdint>
#include <vector>

#include "tests/cpp/codec/pieces.h"
#include "tests/cpp/support/packets.h"

namespace isthmus {

// What a plain reference makes of one encoding.
struct ReferenceEncoding {
  std::vector<uint8_t> packet;
  CodecCounts counts;
  std::vector<float> arrives;  // of each element; zeros where nothing is sent
};

// Two steps against the reference: packets, residuals, counts and what arrives, bit for bit.
// encode_reference(context, piece, residual) updates the residual and returns a ReferenceEncoding.
template <typename EncodeReference>
void expect_two_steps_equal(Codec& codec, Data data, int64_t num_elements, uint64_t unit_hash,
                            const EncodeReference& encode_reference) {
  std::vector<float> residual(codec.keeps_residual() ? num_elements : 0);
  std::vector<float> expected_residual = residual;
  for (uint64_t step = 0; step < 2; ++step) {
    const PacketContext context = {unit_hash, step};
    const std::vector<float> piece = make_piece(data, num_elements, 11 + static_cast<uint32_t>(step));
    Packet packet = new_packet(codec, num_elements);
    const CodecCounts counts = encode(codec, piece, residual, packet, context);
    const ReferenceEncoding expected = encode_reference(context, piece, expected_residual);
    ASSERT_EQ(packet.copy(), expected.packet);
    ASSERT_EQ(bits_of(residual), bits_of(expected_residual));
    EXPECT_EQ(counts.encoded_elements, num_elements);
    EXPECT_EQ(counts.kept_elements, expected.counts.kept_elements);
    EXPECT_EQ(counts.held_back_elements, expected.counts.held_back_elements);
    EXPECT_EQ(counts.estimated_elements, 0);
    EXPECT_EQ(counts.non_finite_blocks, expected.counts.non_finite_blocks);
    std::vector<float> sums;
    for (const float value : expected.arrives) {
      sums.push_back(0.0F + value);  // -0 becomes 0
    }
    ASSERT_EQ(bits_of(decode(codec, packet, num_elements, context)), bits_of(sums));
  }
}

// Three packets are added, in their order, to values that are there.
inline void expect_packets_are_added(Codec& codec, int64_t num_elements, PacketContext context) {
  const int64_t packet_bytes = codec.packet_bytes(num_elements);
  Packet packets(3 * packet_bytes);
  std::vector<float> expected(num_elements, 100.0F);
  for (int p = 0; p < 3; ++p) {
    std::vector<float> residual(num_elements);
    const std::vector<float> piece = make_piece(Data::kHeavyTail, num_elements, 20 + p);
    codec.encode(buffer_of(piece), buffer_of(residual), packets.buffer().part(p, packet_bytes), context.of_packet(p),
                 {});
    for (int64_t i = 0; i < num_elements; ++i) {
      expected[i] += piece[i] - residual[i];  // what is sent of the element: exactly a float32
    }
  }
  std::vector<float> out(num_elements, 100.0F);
  codec.decode_sum(packets.buffer(), 3, buffer_of(out), context, {});
  EXPECT_EQ(out, expected);
}

// No packets leave the sums alone, and a piece without elements has a packet.
inline void expect_nothing_of_nothing(Codec& codec, PacketContext context) {
  std::vector<float> out(10, 1.0F);
  codec.decode_sum({nullptr, 0, DataType::kByte}, 0, buffer_of(out), context, {});
  EXPECT_EQ(out, std::vector<float>(10, 1.0F));
  std::vector<float> none;
  Packet packet = new_packet(codec, 0);
  EXPECT_EQ(encode(codec, none, none, packet, context).encoded_elements, 0);
  EXPECT_TRUE(decode(codec, packet, 0, context).empty());
}

}  // namespace isthmus
