// What tests of tagc's and sparse's passes share: comparisons with the CPU codec.
#pragma once

#include <gtest/gtest.h>

#include <cstdint>
#include <vector>

#include "tests/cpp/support/on_device.h"
#include "tests/cpp/support/packets.h"

namespace isthmus {

// One encoding and its decoding, on the device as on the CPU. encode_on_device(piece, residual) returns an Encoded;
// decode_on_device(packet, out) adds to `out` and returns the DeviceFault.
template <typename EncodeOnDevice, typename DecodeOnDevice>
void expect_same_as_cpu(Codec& cpu, const std::vector<float>& piece, const std::vector<float>& residual,
                        PacketContext context, const EncodeOnDevice& encode_on_device,
                        const DecodeOnDevice& decode_on_device) {
  Packet packet = new_packet(cpu, static_cast<int64_t>(piece.size()));
  std::vector<float> expected_residual = residual;
  const CodecCounts expected = encode(cpu, piece, expected_residual, packet, context);
  const Encoded encoded = encode_on_device(piece, residual);
  ASSERT_EQ(encoded.packet, packet.copy());
  ASSERT_EQ(bits_of(encoded.residual), bits_of(expected_residual));
  const kernels::DeviceCounts& counts = encoded.counts;
  EXPECT_EQ(static_cast<int64_t>(counts.kept_elements), expected.kept_elements);
  EXPECT_EQ(static_cast<int64_t>(counts.chosen_elements - counts.kept_elements), expected.held_back_elements);
  EXPECT_EQ(static_cast<int64_t>(counts.non_finite_blocks), expected.non_finite_blocks);

  std::vector<float> expected_out(piece.size(), .125F);
  std::vector<float> out = expected_out;
  cpu.decode_sum(packet.buffer(), 1, buffer_of(expected_out), context, {});
  EXPECT_EQ(decode_on_device(encoded.packet, out).code, kernels::DeviceFault::kNone);
  ASSERT_EQ(bits_of(out), bits_of(expected_out));
}

}  // namespace isthmus
