// Codec quant's passes for a device, on emulated groups, against the CPU codec: packets, residuals, counts and sums,
// bit for bit.
#include <gtest/gtest.h>

#include <cmath>
#include <cstdint>
#include <limits>
#include <string>
#include <vector>

#include "codec/device_fault.h"
#include "codec/quant/device.h"
#include "codec/quant/host.h"
#include "isthmus/error.h"
#include "tests/cpp/codec/pieces.h"
#include "tests/cpp/support/on_device.h"
#include "tests/cpp/support/typed_data.h"

namespace isthmus {
namespace {

using test::Array;

constexpr PacketContext kContext = {.unit_hash = 0xfedcba9876543210, .step = 7, .segment = 2, .sender = 5};
constexpr Cut kCut = {32, 2};
// One team, more; more groups than blocks; fewer.
constexpr Cut kCuts[] = {{16, 1}, {48, 2}, {128, 1}, {16, 64}};
constexpr float kNan = std::numeric_limits<float>::quiet_NaN();
constexpr float kInfinity = std::numeric_limits<float>::infinity();
constexpr int64_t kWidths[] = {1, 2, 3, 4, 8};

Options options_of(int64_t bits) {
  Options options;
  options.codec = "quant";
  options.bits = bits;
  return options;
}
Options with_feedback(Options options) {
  options.error_feedback = "on";
  return options;
}

Encoded encode_on_device(const Options& options, ConstBuffer piece, const std::vector<float>& residual, Cut cut,
                         PacketContext context = kContext) {
  const auto run = [](EmulatedDevice& device, const kernels::QuantEncodeJob& job) {
    kernels::emulated::run_passes(device, job);
    EXPECT_EQ(device.num_passes(), 2);
  };
  return encode_with(QuantDevice(options), run, piece, residual, context, cut);
}

kernels::DeviceFault decode_on_device(const Options& options, const std::vector<uint8_t>& packets, int64_t num_packets,
                                      std::vector<float>& out, bool to_places, Cut cut,
                                      PacketContext context = kContext) {
  const auto run = [](EmulatedDevice& device, const kernels::QuantDecodeJob& job) {
    kernels::emulated::run_passes(device, job);
    EXPECT_EQ(device.num_passes(), 2);
  };
  return decode_with(QuantDevice(options), run, packets, num_packets, buffer_of(out), to_places, context, cut);
}

Encoded encode_on_cpu(const Options& options, const std::vector<float>& piece, std::vector<float> residual,
                      PacketContext context = kContext) {
  QuantCodec codec(options);
  Memory packet(codec.packet_bytes(static_cast<int64_t>(piece.size())));
  const CodecCounts counts = codec.encode(buffer_of(piece), buffer_of(residual), packet.buffer(), context, {});
  Encoded encoded = {packet.copy(), residual, {}};
  encoded.counts.non_finite_blocks = static_cast<uint64_t>(counts.non_finite_blocks);
  return encoded;
}

void decode_on_cpu(const Options& options, const std::vector<uint8_t>& packets, int num_packets,
                   std::vector<float>& out, PacketContext context = kContext) {
  Memory aligned(packets);
  QuantCodec(options).decode_sum(aligned.buffer(), num_packets, buffer_of(out), context, {});
}

// Which NaN a sum is may differ.
std::vector<uint32_t> bits_or_nan(const std::vector<float>& values) {
  std::vector<uint32_t> bits = bits_of(values);
  for (uint32_t& pattern : bits) {
    pattern = (pattern & 0x7fffffff) > 0x7f800000 ? 0x7fc00000 : pattern;
  }
  return bits;
}

std::vector<float> as_float32(ConstBuffer values) {
  std::vector<float> converted(static_cast<size_t>(values.num_elements));
  convert(values, buffer_of(converted));
  return converted;
}

Array piece_of(Data data, int64_t num_elements, uint32_t seed, DataType dtype) {
  const std::vector<float> values = make_piece(data, num_elements, seed);
  return {std::vector<double>(values.begin(), values.end()), dtype};
}

// Encodes on both sides, then decodes two packets into sums.
void expect_as_on_cpu(const Options& options, const Array& piece, Cut cut) {
  const std::vector<float> values = as_float32(piece.view());
  const auto num_elements = static_cast<int64_t>(values.size());
  const std::vector<float> residual =
      options.error_feedback == "on" ? make_piece(Data::kHeavyTail, num_elements, 77) : std::vector<float>();
  const Encoded expected = encode_on_cpu(options, values, residual);
  const Encoded encoded = encode_on_device(options, piece.view(), residual, cut);
  ASSERT_TRUE(encoded.packet == expected.packet);
  ASSERT_EQ(bits_of(encoded.residual), bits_of(expected.residual));
  ASSERT_EQ(encoded.counts.non_finite_blocks, expected.counts.non_finite_blocks);
  ASSERT_EQ(encoded.counts.kept_elements, static_cast<uint64_t>(num_elements));
  ASSERT_EQ(encoded.counts.chosen_elements, encoded.counts.kept_elements);

  std::vector<uint8_t> packets = expected.packet;
  const Encoded next = encode_on_cpu(options, values, residual, kContext.of_packet(1));
  packets.insert(packets.end(), next.packet.begin(), next.packet.end());
  std::vector<float> expected_sums = make_piece(Data::kHeavyTail, num_elements, 78);
  std::vector<float> sums = expected_sums;
  decode_on_cpu(options, packets, 2, expected_sums);
  EXPECT_EQ(decode_on_device(options, packets, 2, sums, /*to_places=*/false, cut).code, kernels::DeviceFault::kNone);
  ASSERT_EQ(bits_or_nan(sums), bits_or_nan(expected_sums));
}

TEST(QuantDevice, AllSettingsAreThoseOfTheCpu) {
  for (const int64_t bits : kWidths) {
    for (const DataType dtype : {DataType::kFloat32, DataType::kBFloat16, DataType::kFloat16}) {
      for (const Options& options : {options_of(bits), with_feedback(options_of(bits))}) {
        SCOPED_TRACE(options.to_string() + " of " + to_string(dtype));
        expect_as_on_cpu(options, piece_of(Data::kHeavyTail, 512 + 2 * 128 + 37, 3, dtype), kCut);
      }
    }
  }
}

TEST(QuantDevice, SizesAroundEveryBoundary) {
  for (const int64_t base : {0, 128, 256, 384, 512, 512 + 128, 1024}) {
    for (const int64_t offset : {-1, 0, 1}) {
      if (base + offset >= 0) {
        SCOPED_TRACE(testing::Message() << base + offset << " elements");
        expect_as_on_cpu(with_feedback(options_of(3)), piece_of(Data::kHeavyTail, base + offset, 4, DataType::kFloat32),
                         kCut);
      }
    }
  }
}

TEST(QuantDevice, AnyCutGivesTheSame) {
  for (const Cut cut : kCuts) {
    SCOPED_TRACE(testing::Message() << cut.num_threads << " threads in " << cut.max_groups << " groups");
    expect_as_on_cpu(with_feedback(options_of(4)), piece_of(Data::kHeavyTail, 5 * 512 + 300, 5, DataType::kBFloat16),
                     cut);
    expect_as_on_cpu(options_of(2), piece_of(Data::kHeavyTail, 2 * 512 + 77, 6, DataType::kFloat16), cut);
  }
}

TEST(QuantDevice, DifficultDataIsThatOfTheCpu) {
  for (const Data data : all_data()) {
    for (const int64_t bits : {2, 4, 8}) {
      SCOPED_TRACE(to_string(data) + ", " + std::to_string(bits) + " bits");
      expect_as_on_cpu(with_feedback(options_of(bits)), piece_of(data, 1200, 7, DataType::kFloat32), kCut);
    }
  }
}

// In a group and in the exact tail; of both signs, with other bits than the quiet NaN of a processor.
TEST(QuantDevice, NanAndInfStayInTheirGroup) {
  for (const bool feedback : {true, false}) {
    for (const DataType dtype : {DataType::kFloat32, DataType::kBFloat16, DataType::kFloat16}) {
      Options options = options_of(4);
      options.error_feedback = feedback ? "on" : "off";
      std::vector<double> values = test::random_values(1024 + 128 + 40, 8);
      values[5] = kNan;
      values[600] = kInfinity;
      values[601] = -kInfinity;
      values[1024 + 128 + 3] = -kInfinity;
      values.back() = -static_cast<double>(kNan);
      SCOPED_TRACE(std::string(to_string(dtype)) + (feedback ? " with" : " without"));
      expect_as_on_cpu(options, Array(values, dtype), kCut);
    }
  }
}

TEST(QuantDevice, PiecesAndResidualsOfAnyAlignment) {
  const Options options = with_feedback(options_of(4));
  const std::vector<float> values = make_piece(Data::kHeavyTail, 801, 9);
  const std::vector<float> piece(values.begin() + 1, values.end());
  const Encoded expected = encode_on_cpu(options, piece, std::vector<float>(800));
  const Encoded encoded = encode_on_device(options, buffer_of(values).slice(1, 800), std::vector<float>(800), kCut);
  EXPECT_TRUE(encoded.packet == expected.packet);
  EXPECT_EQ(bits_of(encoded.residual), bits_of(expected.residual));
}

// As if each had been decoded alone into zeros. Two packets of each node.
TEST(QuantDevice, EachPacketToItsPlace) {
  PacketContext context = kContext;
  context.packets_of_sender = 2;
  for (const int64_t num_elements : {1, 127, 700, 1024 + 130}) {
    const Options options = options_of(1);
    std::vector<uint8_t> packets;
    std::vector<float> expected;
    for (int p = 0; p < 3; ++p) {
      std::vector<float> piece = make_piece(Data::kHeavyTail, num_elements, 20 + p);
      piece.back() = -0.0F;  // 0 + -0 is 0
      piece[0] = p == 1 ? kNan : piece[0];
      const Encoded encoded = encode_on_cpu(options, piece, {}, context.of_packet(p));
      std::vector<float> alone(static_cast<size_t>(num_elements));
      decode_on_cpu(options, encoded.packet, 1, alone, context.of_packet(p));
      packets.insert(packets.end(), encoded.packet.begin(), encoded.packet.end());
      expected.insert(expected.end(), alone.begin(), alone.end());
    }
    for (const Cut cut : kCuts) {
      std::vector<float> out(static_cast<size_t>(3 * num_elements), 5.0F);
      EXPECT_EQ(decode_on_device(options, packets, 3, out, /*to_places=*/true, cut, context).code,
                kernels::DeviceFault::kNone);
      EXPECT_EQ(bits_or_nan(out), bits_or_nan(expected));
    }
  }
}

// For ThreadSanitizer.
TEST(QuantDevice, ThreadsAtOnce) {
  Array piece = piece_of(Data::kHeavyTail, 1300, 10, DataType::kFloat32);
  piece.buffer().as<float>()[700] = kNan;
  expect_as_on_cpu(with_feedback(options_of(4)), piece, {16, 2, EmulatedDevice::Threads::kAtOnce});
}

TEST(QuantDevice, DamageIsNamedAsOnCpu) {
  const Options options = options_of(4);
  const std::vector<float> piece = make_piece(Data::kHeavyTail, 1100, 11);
  const std::vector<uint8_t> packet = encode_on_cpu(options, piece, {}).packet;
  const std::vector<uint8_t> next = encode_on_cpu(options, piece, {}, kContext.of_packet(1)).packet;
  for (const size_t byte : {size_t{1}, size_t{4}, size_t{7}, size_t{9}, size_t{17}, size_t{24}, size_t{30}, size_t{34},
                            size_t{41}, size_t{50}, size_t{65}, packet.size() / 2, packet.size() - 1}) {
    std::vector<uint8_t> packets = packet;
    packets.insert(packets.end(), next.begin(), next.end());
    packets[packet.size() + byte] ^= 4;
    const auto message_of = [](const auto& decode) -> std::string {
      std::vector<float> out(1100);
      try {
        decode(out);
      } catch (const PacketError& error) {
        return error.what();
      }
      return "";
    };
    const std::string message = message_of([&](std::vector<float>& out) {
      throw_if_reported(decode_on_device(options, packets, 2, out, /*to_places=*/false, kCut));
    });
    EXPECT_NE(message, "") << byte;
    EXPECT_EQ(message, message_of([&](std::vector<float>& out) { decode_on_cpu(options, packets, 2, out); }));
  }
}

// In every section of a packet, whether the threads that decode take its checksum or others, beside others' damage.
TEST(QuantDevice, DamageOfAnyPacketIsFound) {
  constexpr int64_t kElements = 600;
  PacketContext context = kContext;
  context.packets_of_sender = kernels::kQuantPacketsSummed + 1;  // of one node
  const Options options = options_of(3);
  const std::vector<uint8_t> packet = encode_on_cpu(options, make_piece(Data::kHeavyTail, kElements, 11), {}).packet;
  const auto size = static_cast<int64_t>(packet.size());
  for (const int64_t num_packets : {int64_t{1}, kernels::kQuantPacketsSummed, kernels::kQuantPacketsSummed + 1}) {
    std::vector<uint8_t> packets;
    for (int64_t p = 0; p < num_packets; ++p) {
      packets.insert(packets.end(), packet.begin(), packet.end());
    }
    for (const bool to_places : {false, true}) {
      std::vector<float> out(static_cast<size_t>(to_places ? num_packets * kElements : kElements));
      const auto fault_of = [&](const std::vector<uint8_t>& damaged) {
        return decode_on_device(options, damaged, num_packets, out, to_places, {16, 3}, context);
      };
      EXPECT_EQ(fault_of(packets).code, kernels::DeviceFault::kNone) << num_packets << ' ' << to_places;
      for (const int64_t first : {int64_t{0}, num_packets - 1}) {
        for (const int64_t byte :
             {int64_t{49}, int64_t{65}, int64_t{127}, int64_t{128}, int64_t{300}, size - 300, size - 1}) {
          std::vector<uint8_t> damaged = packets;
          damaged[first * size + byte] ^= 0x80;
          damaged.back() ^= first * size + byte == num_packets * size - 1 ? 0 : 1;
          const kernels::DeviceFault fault = fault_of(damaged);
          EXPECT_EQ(fault.packet(), first) << byte << " of " << num_packets << ' ' << to_places;
          EXPECT_EQ(fault.kind(), kernels::FaultKind::kChecksum);
        }
      }
    }
  }
}

TEST(QuantDevice, NothingIsDecodedAfterAFault) {
  const QuantDevice maker(options_of(4));
  Memory packet(encode_on_cpu(options_of(4), make_piece(Data::kHeavyTail, 600, 12), {}).packet);
  Memory scratch(maker.decode_scratch_bytes({600}));
  const kernels::DeviceContext context = device_context(kContext);
  kernels::DeviceFault fault;
  fault.code = kernels::DeviceFault::code_of(2, kernels::FaultKind::kChecksum);
  fault.reported = 1;
  std::vector<float> out(600, 3.0F);
  EmulatedDevice device(32, 2, 1);
  kernels::emulated::run_passes(device, maker.decode_job({packet.buffer(), 1, buffer_of(out), /*to_places=*/false,
                                                          read_from(context, kContext), &fault, scratch.buffer()}));
  EXPECT_EQ(out, std::vector<float>(600, 3.0F));
  EXPECT_EQ(fault.packet(), 2);
}

TEST(QuantDevice, RejectsWrongBuffers) {
  const QuantDevice maker(with_feedback(options_of(4)));
  std::vector<float> values(100);
  std::vector<float> residual(99);
  Memory packet(maker.packet_bytes(100));
  Memory scratch(maker.encode_scratch_bytes(100));
  const auto encode = [&](ConstBuffer piece, Buffer rest, Buffer to, Buffer with) {
    maker.encode_job({piece, rest, to, {}, nullptr, with});
  };
  EXPECT_THROW(encode(buffer_of(values), buffer_of(residual), packet.buffer(), scratch.buffer()), Error);
  EXPECT_THROW(encode(buffer_of(values), {}, packet.buffer(), scratch.buffer()), Error);
  residual.resize(100);
  EXPECT_NO_THROW(encode(buffer_of(values), buffer_of(residual), packet.buffer(), scratch.buffer()));
  const Array doubles(100, DataType::kFloat64);
  EXPECT_THROW(encode(doubles.view(), buffer_of(residual), packet.buffer(), scratch.buffer()), Error);
  EXPECT_THROW(encode(buffer_of(values), buffer_of(residual), packet.buffer().slice(64, packet.buffer().bytes() - 64),
                      scratch.buffer()),
               Error);
  EXPECT_THROW(encode(buffer_of(values), buffer_of(residual), packet.buffer(), scratch.buffer().slice(0, 64)), Error);
}

}  // namespace
}  // namespace isthmus
