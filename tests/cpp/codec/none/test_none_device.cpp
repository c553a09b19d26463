// Codec none's passes for a device, on emulated groups, against the CPU codec: packets and sums, bit for bit.
#include <gtest/gtest.h>

#include <cstdint>
#include <limits>
#include <string>
#include <vector>

#include "codec/device_fault.h"
#include "codec/none/device.h"
#include "codec/none/host.h"
#include "isthmus/error.h"
#include "tests/cpp/emulated/emulated_passes.h"
#include "tests/cpp/support/typed_data.h"

namespace isthmus {
namespace {

using test::Array;
using test::EmulatedDevice;
using test::kFloatingTypes;
using test::random_values;

constexpr PacketContext kContext = {.unit_hash = 0x0123456789abcdef, .step = 42, .sender = 3};
const kernels::DeviceContext kDeviceContext{kContext.unit_hash, kContext.step};
constexpr PacketContext kOnDevice = {.sender = 3, .on_device = &kDeviceContext};  // unit and step are read there

// Dirty, and aligned to 8 bytes.
std::vector<uint64_t> dirty_words(int64_t bytes) {
  return std::vector<uint64_t>(static_cast<size_t>((bytes + 7) / 8), 0xa5a5a5a5a5a5a5a5);
}
Buffer bytes_of(std::vector<uint64_t>& words) {
  return {words.data(), static_cast<int64_t>(8 * words.size()), DataType::kByte};
}

std::vector<uint64_t> encode_on_cpu(DataType wire, int ranks_per_node, const Array& piece,
                                    PacketContext context = kContext) {
  NoneCodec codec(wire, ranks_per_node);
  std::vector<uint64_t> packet = dirty_words(codec.packet_bytes(piece.view().num_elements));
  codec.encode(piece.view(), {}, bytes_of(packet), context, {});
  return packet;
}

std::vector<uint64_t> encode_on_device(DataType wire, int ranks_per_node, const Array& piece,
                                       PacketContext context = kOnDevice) {
  const NoneDevice codec(wire, ranks_per_node);
  std::vector<uint64_t> packet = dirty_words(codec.packet_bytes(piece.view().num_elements));
  std::vector<uint64_t> scratch = dirty_words(codec.encode_scratch_bytes(0));
  EmulatedDevice device(37, 2, 1);
  kernels::emulated::run_passes(
      device, codec.encode_job({piece.view(), {}, bytes_of(packet), context, nullptr, bytes_of(scratch)}));
  EXPECT_EQ(device.num_passes(), 2);
  return packet;
}

kernels::DeviceFault decode_on_device(DataType wire, int ranks_per_node, std::vector<uint64_t>& packets,
                                      int num_packets, Array& out) {
  const NoneDevice codec(wire, ranks_per_node);
  std::vector<uint64_t> scratch = dirty_words(codec.decode_scratch_bytes({out.view().num_elements, num_packets}));
  kernels::DeviceFault fault;
  EmulatedDevice device(37, 3, 2);
  kernels::emulated::run_passes(device, codec.decode_job({bytes_of(packets), num_packets, out.buffer(),
                                                          /*to_places=*/false, kOnDevice, &fault, bytes_of(scratch)}));
  EXPECT_EQ(device.num_passes(), 2);
  return fault;
}

TEST(NoneDevice, PacketsAndSumsAreThoseOfTheCpu) {
  for (const DataType wire : kFloatingTypes) {
    for (const DataType piece_dtype : {wire, accumulate_dtype(wire)}) {
      for (const int ranks_per_node : {1, 3}) {
        for (const int64_t count : {0, 1, 2, 3, 4, 5, 1023, 1024, 1025, 2049, 4097}) {
          SCOPED_TRACE(testing::Message() << to_string(wire) << " of " << to_string(piece_dtype) << ", " << count);
          const Array piece(random_values(count, 5), piece_dtype);
          std::vector<uint64_t> packets = encode_on_device(wire, ranks_per_node, piece);
          ASSERT_EQ(packets, encode_on_cpu(wire, ranks_per_node, piece));
          const std::vector<uint64_t> second = encode_on_device(
              wire, ranks_per_node, Array(random_values(count, 6), piece_dtype), kOnDevice.of_packet(1));
          packets.insert(packets.end(), second.begin(), second.end());
          Array expected(random_values(count, 7), accumulate_dtype(wire));
          Array out = expected;
          NoneCodec(wire, ranks_per_node).decode_sum(bytes_of(packets), 2, expected.buffer(), kContext, {});
          EXPECT_EQ(decode_on_device(wire, ranks_per_node, packets, 2, out).code, kernels::DeviceFault::kNone);
          ASSERT_EQ(out.bytes(), expected.bytes());
        }
      }
    }
  }
}

// More packets than are added together.
TEST(NoneDevice, ManyPacketsKeepTheirOrder) {
  constexpr int kPackets = 35;
  const int64_t count = 700;
  std::vector<uint64_t> packets;
  for (int p = 0; p < kPackets; ++p) {
    const std::vector<uint64_t> packet = encode_on_cpu(
        DataType::kBFloat16, 1, Array(random_values(count, p), DataType::kFloat32), kContext.of_packet(p));
    packets.insert(packets.end(), packet.begin(), packet.end());
  }
  Array expected(random_values(count, 99), DataType::kFloat32);
  Array out = expected;
  NoneCodec(DataType::kBFloat16, 1).decode_sum(bytes_of(packets), kPackets, expected.buffer(), kContext, {});
  EXPECT_EQ(decode_on_device(DataType::kBFloat16, 1, packets, kPackets, out).reported, 0U);
  EXPECT_EQ(out.bytes(), expected.bytes());
}

TEST(NoneDevice, EachPacketToItsPlace) {
  constexpr int kPackets = 3;
  for (const DataType wire : kFloatingTypes) {
    for (const int64_t count : {1, 7, 1024, 1026}) {
      SCOPED_TRACE(testing::Message() << to_string(wire) << ", " << count);
      const NoneDevice codec(wire, 1);
      std::vector<uint64_t> packets;
      Array expected(kPackets * count, accumulate_dtype(wire));
      for (int p = 0; p < kPackets; ++p) {
        std::vector<double> values = random_values(count, 10 + p);
        values[0] = -0.0;  // 0 + -0 is 0
        std::vector<uint64_t> packet =
            encode_on_cpu(wire, 1, Array(values, accumulate_dtype(wire)), kContext.of_packet(p));
        NoneCodec(wire, 1).decode_sum(bytes_of(packet), 1, expected.buffer().slice(p * count, count),
                                      kContext.of_packet(p), {});
        packets.insert(packets.end(), packet.begin(), packet.end());
      }
      Array out(random_values(kPackets * count, 8), accumulate_dtype(wire));
      std::vector<uint64_t> scratch = dirty_words(codec.decode_scratch_bytes({count, kPackets, /*to_places=*/true}));
      kernels::DeviceFault fault;
      EmulatedDevice device(37, 3, 2);
      kernels::emulated::run_passes(
          device, codec.decode_job({bytes_of(packets), kPackets, out.buffer(), /*to_places=*/true, kOnDevice, &fault,
                                    bytes_of(scratch)}));
      EXPECT_EQ(fault.code, kernels::DeviceFault::kNone);
      EXPECT_EQ(device.num_passes(), 2);
      EXPECT_EQ(out.bytes(), expected.bytes());
    }
  }
}

// For ThreadSanitizer.
TEST(NoneDevice, ThreadsAtOnce) {
  const NoneDevice codec(DataType::kBFloat16, 1);
  const Array piece(random_values(6000, 3), DataType::kFloat32);
  std::vector<uint64_t> packet = dirty_words(codec.packet_bytes(6000));
  std::vector<uint64_t> scratch = dirty_words(codec.decode_scratch_bytes({0}));
  EmulatedDevice device(3, 3, 1, EmulatedDevice::Threads::kAtOnce);
  kernels::emulated::run_passes(
      device, codec.encode_job({piece.view(), {}, bytes_of(packet), kOnDevice, nullptr, bytes_of(scratch)}));
  EXPECT_EQ(packet, encode_on_cpu(DataType::kBFloat16, 1, piece));
  packet[50] ^= 1;
  Array out(6000, DataType::kFloat32);
  kernels::DeviceFault fault;
  kernels::DeviceFault mapped;
  kernels::NoneDecodeJob job =
      codec.decode_job({bytes_of(packet), 1, out.buffer(), /*to_places=*/false, kOnDevice, &fault, bytes_of(scratch)});
  job.mapped_fault = &mapped;
  kernels::emulated::run_passes(device, job);
  EXPECT_EQ(mapped.reported, 1U);
  EXPECT_EQ(mapped.kind(), kernels::FaultKind::kChecksum);
  EXPECT_EQ(mapped.code, fault.code);
}

TEST(NoneDevice, SpecialValuesPass) {
  constexpr double kInfinity = std::numeric_limits<double>::infinity();
  constexpr double kNan = std::numeric_limits<double>::quiet_NaN();
  for (const DataType wire : kFloatingTypes) {
    const Array piece({0.0, -0.0, kInfinity, -kInfinity, kNan, 65504, 65519, 65520, 1e-7, 6e-8, 1e-40, 1e-320, 3e38},
                      accumulate_dtype(wire));
    EXPECT_EQ(encode_on_device(wire, 1, piece), encode_on_cpu(wire, 1, piece)) << to_string(wire);
    EXPECT_EQ(encode_on_device(wire, 8, piece), encode_on_cpu(wire, 8, piece)) << to_string(wire);
  }
}

TEST(NoneDevice, DamageIsNamedAsOnCpu) {
  const Array piece(random_values(700, 8), DataType::kFloat32);
  const std::vector<uint64_t> packet = encode_on_cpu(DataType::kFloat32, 1, piece);
  for (const size_t bit : {size_t{0}, size_t{40}, size_t{64}, size_t{130}, size_t{200}, size_t{241}, size_t{260},
                           size_t{330}, size_t{384}, 64 * packet.size() - 1}) {
    std::vector<uint64_t> damaged = packet;
    damaged[bit / 64] ^= uint64_t{1} << bit % 64;
    const auto message_of = [&](auto decode) -> std::string {
      Array out(700, DataType::kFloat32);
      try {
        decode(out);
      } catch (const PacketError& error) {
        return error.what();
      }
      return "";
    };
    const std::string message =
        message_of([&](Array& out) { throw_if_reported(decode_on_device(DataType::kFloat32, 1, damaged, 1, out)); });
    ASSERT_NE(message, "") << bit;
    EXPECT_EQ(message, message_of([&](Array& out) {
                NoneCodec(DataType::kFloat32, 1).decode_sum(bytes_of(damaged), 1, out.buffer(), kContext, {});
              }));
  }
}

}  // namespace
}  // namespace isthmus
