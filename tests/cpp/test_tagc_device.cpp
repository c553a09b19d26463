// Codec tagc's passes for a device, on emulated groups, against the CPU codec: packets, residuals, counts and sums, bit
// for bit.
#include <gtest/gtest.h>

#include <bit>
#include <cstdint>
#include <cstring>
#include <limits>
#include <set>
#include <string>
#include <vector>

#define ISTHMUS_KERNEL_NAMESPACE emulated

#include "codec/checksum.h"
#include "codec/device_fault.h"
#include "codec/tagc.h"
#include "codec/tagc_device.h"
#include "emulated_device.h"
#include "isthmus/error.h"
#include "kernels/tagc_sequence.h"
#include "scratch.h"
#include "tagc_data.h"
#include "tagc_reference.h"

namespace isthmus {
namespace {

using test::EmulatedDevice;

constexpr float kNan = std::numeric_limits<float>::quiet_NaN();
constexpr float kInfinity = std::numeric_limits<float>::infinity();
constexpr PacketContext kContext = {.unit_hash = 0xfedcba9876543210, .step = 7};

// How a device cuts the work: results must not depend on it.
struct Cut {
  int64_t num_threads;
  int64_t max_groups;
  EmulatedDevice::Threads threads = EmulatedDevice::Threads::kInTurns;
};
constexpr Cut kCuts[] = {{1, 1}, {7, 3}, {32, 2}, {33, 5}, {128, 4}};

Options options_of(double ratio, double sparsity, int64_t block_elements = 0, int64_t peel_rounds = 64) {
  Options options;
  options.ratio = ratio;
  options.sparsity = sparsity;
  options.block_elements = block_elements;
  options.peel_rounds = peel_rounds;
  return options;
}

// 64-byte aligned and dirty, as a device's memory.
class Memory {
 public:
  explicit Memory(int64_t bytes) : memory_(allocate_aligned(bytes + 64)), bytes_(bytes) {
    std::memset(memory_.get(), 0xa5, bytes + 64);
  }
  uint8_t* data() { return reinterpret_cast<uint8_t*>(memory_.get()); }
  Buffer buffer() { return {memory_.get(), bytes_, DataType::kByte}; }
  std::vector<uint8_t> copy() { return {data(), data() + bytes_}; }
  // Whether nothing was written past the end.
  bool ends_intact() {
    return std::all_of(data() + bytes_, data() + bytes_ + 64, [](uint8_t byte) { return byte == 0xa5; });
  }

 private:
  AlignedMemory memory_;
  int64_t bytes_;
};

Buffer buffer_of(std::vector<float>& values) {
  return {values.data(), static_cast<int64_t>(values.size()), DataType::kFloat32};
}
ConstBuffer buffer_of(const std::vector<float>& values) {
  return {values.data(), static_cast<int64_t>(values.size()), DataType::kFloat32};
}

std::vector<uint32_t> bits_of(const std::vector<float>& values) {
  std::vector<uint32_t> bits;
  for (const float value : values) {
    bits.push_back(std::bit_cast<uint32_t>(value));
  }
  return bits;
}

kernels::DeviceContext device_context(PacketContext context) { return {context.unit_hash, context.step}; }

struct Encoded {
  std::vector<uint8_t> packet;
  std::vector<float> residual;
  kernels::DeviceCounts counts;
};

Encoded encode_on_device(const Options& options, ConstBuffer piece, std::vector<float> residual, PacketContext context,
                         Cut cut) {
  const TagcDevice codec(options);
  const int64_t num_elements = piece.num_elements;
  Memory packet(codec.packet_bytes(num_elements));
  Memory scratch(codec.encode_scratch_bytes(num_elements));
  const kernels::DeviceContext in_memory = device_context(context);
  Encoded encoded;
  EmulatedDevice device(cut.num_threads, cut.max_groups, 1, cut.threads);
  kernels::emulated::encode_tagc(device, codec.encode_job(piece, buffer_of(residual), packet.buffer(), &in_memory,
                                                          &encoded.counts, scratch.buffer()));
  EXPECT_TRUE(packet.ends_intact() && scratch.ends_intact());
  encoded.packet = packet.copy();
  encoded.residual = residual;
  return encoded;
}

Encoded encode_on_device(const Options& options, const std::vector<float>& piece, const std::vector<float>& residual,
                         PacketContext context, Cut cut) {
  return encode_on_device(options, buffer_of(piece), residual, context, cut);
}

kernels::DeviceFault decode_on_device(const Options& options, const std::vector<uint8_t>& packets, int num_packets,
                                      std::vector<float>& out, PacketContext context, Cut cut) {
  const TagcDevice codec(options);
  const auto num_elements = static_cast<int64_t>(out.size());
  Memory aligned(static_cast<int64_t>(packets.size()));
  std::copy(packets.begin(), packets.end(), aligned.data());
  Memory scratch(codec.decode_scratch_bytes(num_elements, num_packets));
  const kernels::DeviceContext in_memory = device_context(context);
  kernels::DeviceFault fault;
  EmulatedDevice device(cut.num_threads, cut.max_groups, 2, cut.threads);
  kernels::emulated::decode_tagc(
      device, codec.decode_job(aligned.buffer(), num_packets, buffer_of(out), &in_memory, &fault, scratch.buffer()));
  EXPECT_TRUE(scratch.ends_intact());
  return fault;
}

// One encoding and its decoding, on the device as on the CPU.
void expect_as_on_cpu(const Options& options, const std::vector<float>& piece, const std::vector<float>& residual,
                      Cut cut, PacketContext context = kContext) {
  SCOPED_TRACE(testing::Message() << piece.size() << " elements, ratio " << options.ratio << ", sparsity "
                                  << options.sparsity << ", blocks " << options.block_elements << ", "
                                  << cut.num_threads << " threads, " << cut.max_groups << " groups");
  TagcCodec cpu(options);
  Memory packet(cpu.packet_bytes(static_cast<int64_t>(piece.size())));
  std::vector<float> expected_residual = residual;
  const CodecCounts expected = cpu.encode(buffer_of(piece), buffer_of(expected_residual), packet.buffer(), context, {});
  const Encoded encoded = encode_on_device(options, piece, residual, context, cut);
  ASSERT_EQ(encoded.packet, packet.copy());
  ASSERT_EQ(bits_of(encoded.residual), bits_of(expected_residual));
  EXPECT_EQ(static_cast<int64_t>(encoded.counts.kept_elements), expected.kept_elements);
  EXPECT_EQ(static_cast<int64_t>(encoded.counts.chosen_elements - encoded.counts.kept_elements),
            expected.held_back_elements);
  EXPECT_EQ(static_cast<int64_t>(encoded.counts.non_finite_blocks), expected.non_finite_blocks);

  std::vector<float> expected_out(piece.size(), .125F);
  std::vector<float> out = expected_out;
  cpu.decode_sum(packet.buffer(), 1, buffer_of(expected_out), context, {});
  const kernels::DeviceFault fault = decode_on_device(options, encoded.packet, 1, out, context, cut);
  EXPECT_EQ(fault.code, kernels::DeviceFault::kNone);
  ASSERT_EQ(bits_of(out), bits_of(expected_out));
}

void expect_as_on_cpu(const Options& options, Data data, int64_t num_elements, Cut cut) {
  SCOPED_TRACE(to_string(data));
  expect_as_on_cpu(options, make_piece(data, num_elements, 11), make_piece(Data::kHeavyTail, num_elements, 12), cut);
  expect_as_on_cpu(options, make_piece(data, num_elements, 11), std::vector<float>(num_elements), cut);
}

TEST(TagcDevice, AllSizesAndCuts) {
  for (const Cut cut : kCuts) {
    for (const int64_t num_elements : {0, 1, 2, 63, 64, 65, 127, 128, 129, 1023, 1024, 1025, 12345}) {
      expect_as_on_cpu(options_of(10, .9875), Data::kHeavyTail, num_elements, cut);
      expect_as_on_cpu(options_of(2, .8), Data::kHeavyTail, num_elements, cut);
    }
  }
}

TEST(TagcDevice, DifficultData) {
  for (const Data data : all_data()) {
    for (const int64_t num_elements : {65, 4097, 20011}) {
      expect_as_on_cpu(options_of(10, .9875), data, num_elements, {17, 3});
      expect_as_on_cpu(options_of(2, .5), data, num_elements, {17, 3});
    }
  }
}

TEST(TagcDevice, EveryBlockSize) {
  for (int64_t block_elements = 64; block_elements <= 4096; block_elements *= 2) {
    for (const int64_t num_elements : {1, 4095, 4096, 4097, 12289}) {
      expect_as_on_cpu(options_of(4, .9, block_elements), Data::kHeavyTail, num_elements, {20, 3});
    }
  }
}

TEST(TagcDevice, AllKeptAndMuchHeldBack) {
  for (const Cut cut : {Cut{5, 2}, Cut{64, 3}}) {
    expect_as_on_cpu(options_of(1, 0), Data::kHeavyTail, 5000, cut);
    expect_as_on_cpu(options_of(10, 0), Data::kAllEqual, 5000, cut);
    expect_as_on_cpu(options_of(10, .9), Data::kHeavyTail, 20000, cut);
    expect_as_on_cpu(options_of(4, .8, 64, 1), Data::kHeavyTail, 20000, cut);
    expect_as_on_cpu(options_of(4, .8, 64, 2), Data::kHeavyTail, 20000, cut);
    expect_as_on_cpu(options_of(4, .8, 64, 3), Data::kHeavyTail, 20000, cut);
  }
}

TEST(TagcDevice, OtherStepsBeginElsewhere) {
  const std::vector<float> piece = make_piece(Data::kHeavyTail, 9000, 3);
  for (const uint64_t step : {uint64_t{0}, uint64_t{1}, uint64_t{5}, uint64_t{1} << 40}) {
    expect_as_on_cpu(options_of(10, .9), piece, std::vector<float>(9000), {17, 3}, {1, step});
  }
}

TEST(TagcDevice, AMillionElements) {
  expect_as_on_cpu(options_of(10, .9875), Data::kHeavyTail, (1 << 20) + 1, {32, 3});
  expect_as_on_cpu(options_of(2, .8), Data::kFewDistinct, (1 << 20) - 1, {32, 3});
}

// More rows than shared memory has room for.
TEST(TagcDevice, TablesInScratchMemory) {
  const int64_t num_elements = 64 * 16385 + 1;
  ASSERT_FALSE(kernels::tables_fit_shared(TagcSettings(options_of(1, .999, 64)).shape(num_elements)));
  const std::vector<float> residual(num_elements);
  expect_as_on_cpu(options_of(1, .999, 64), make_piece(Data::kHeavyTail, num_elements, 5), residual, {8, 2});
}

TEST(TagcDevice, EqualsThePlainReference) {
  for (const int64_t num_elements : {1, 65, 30001}) {
    const Options options = options_of(10, .9);
    const std::vector<float> piece = make_piece(Data::kFewDistinct, num_elements, 21);
    std::vector<float> residual(num_elements);
    const Encoded encoded = encode_on_device(options, piece, residual, kContext, {33, 3});
    const reference::TwoTierResult expected = reference::encode_two_tier(
        {options.ratio, options.sparsity, 0, options.peel_rounds, kContext.unit_hash, kContext.step}, piece, residual);
    EXPECT_EQ(encoded.packet, expected.packet);
    EXPECT_EQ(bits_of(encoded.residual), bits_of(residual));
  }
}

TEST(TagcDevice, UnalignedPiecesAndResiduals) {
  const Options options = options_of(4, .9);
  std::vector<float> piece = make_piece(Data::kHeavyTail, 3000, 4);
  std::vector<float> residual(2999);
  Memory expected(TagcCodec(options).packet_bytes(2999));
  TagcCodec(options).encode(buffer_of(piece).slice(1, 2999), buffer_of(residual), expected.buffer(), kContext, {});
  const TagcDevice codec(options);
  Memory packet(codec.packet_bytes(2999));
  Memory scratch(codec.encode_scratch_bytes(2999));
  std::vector<float> residual_on_device(2999);
  const kernels::DeviceContext context = device_context(kContext);
  kernels::DeviceCounts counts;
  EmulatedDevice device(31, 2, 3);
  kernels::emulated::encode_tagc(
      device, codec.encode_job(buffer_of(piece).slice(1, 2999), buffer_of(residual_on_device), packet.buffer(),
                               &context, &counts, scratch.buffer()));
  EXPECT_EQ(packet.copy(), expected.copy());
  EXPECT_EQ(bits_of(residual_on_device), bits_of(residual));
}

// All that the sample meets is large, and less than what is to be kept.
TEST(TagcDevice, ASampleThatMisleads) {
  const int64_t num_elements = 16 * 1250;
  const int64_t num_runs = 1250 / 16;
  for (const double sparsity : {.9, .5, 0.0}) {
    std::vector<float> piece = make_piece(Data::kHeavyTail, num_elements, 23);
    for (int64_t run = 0; run < num_runs; ++run) {
      const auto jitter = static_cast<int64_t>(kernels::emulated::mix(run) % (1250 / num_runs));
      const int64_t first = 16 * (run * (1250 / num_runs) + jitter);
      std::fill_n(piece.begin() + first, 16, 1e6F);
    }
    expect_as_on_cpu(options_of(2, sparsity), piece, std::vector<float>(num_elements), {33, 3});
  }
}

// As if they had been widened first.
TEST(TagcDevice, PiecesOf16Bits) {
  const Options options = options_of(4, .9);
  for (const DataType dtype : {DataType::kBFloat16, DataType::kFloat16}) {
    for (const int64_t offset : {0, 1}) {  // whether four can be loaded at once
      const int64_t num_elements = 5001;
      const std::vector<float> values = make_piece(Data::kHeavyTail, num_elements + offset, 31);
      std::vector<uint16_t> rounded(values.size());
      const Buffer in_16_bits = {rounded.data(), static_cast<int64_t>(rounded.size()), dtype};
      convert(buffer_of(values), in_16_bits);
      const ConstBuffer piece = in_16_bits.slice(offset, num_elements);
      std::vector<float> widened(num_elements);
      convert(piece, buffer_of(widened));
      const std::vector<float> residual = make_piece(Data::kHeavyTail, num_elements, 32);
      const Encoded expected = encode_on_device(options, widened, residual, kContext, {32, 2});
      const Encoded encoded = encode_on_device(options, piece, residual, kContext, {32, 2});
      EXPECT_EQ(encoded.packet, expected.packet);
      EXPECT_EQ(bits_of(encoded.residual), bits_of(expected.residual));
    }
  }
}

TEST(TagcDevice, NonFiniteBlocks) {
  const int64_t num_elements = 5000;
  std::vector<float> piece = make_piece(Data::kHeavyTail, num_elements, 6);
  std::vector<float> residual = make_piece(Data::kHeavyTail, num_elements, 7);
  piece[300] = kNan;
  piece[301] = -kInfinity;
  piece[1024] = kInfinity;
  piece[num_elements - 1] = -kNan;
  piece[2047] = residual[2047] = std::numeric_limits<float>::max();
  for (const Cut cut : kCuts) {
    expect_as_on_cpu(options_of(4, .9, 256), piece, residual, cut);
    expect_as_on_cpu(options_of(10, .9875), std::vector<float>(4097, kNan), std::vector<float>(4097, 1.0F), cut);
  }
}

TEST(TagcDevice, AddsSeveralPacketsInOrder) {
  const int64_t num_elements = 10007;
  const Options options = options_of(10, .9875);
  std::vector<uint8_t> packets;
  for (int p = 0; p < 3; ++p) {
    std::vector<float> piece = make_piece(Data::kHeavyTail, num_elements, 20 + p);
    if (p == 1) {
      piece[77] = kNan;
    }
    const Encoded encoded = encode_on_device(options, piece, std::vector<float>(num_elements), kContext, {32, 4});
    packets.insert(packets.end(), encoded.packet.begin(), encoded.packet.end());
  }
  std::vector<float> expected(num_elements, 100.0F);
  TagcCodec cpu(options);
  cpu.decode_sum({packets.data(), static_cast<int64_t>(packets.size()), DataType::kByte}, 3, buffer_of(expected),
                 kContext, {});
  for (const Cut cut : kCuts) {
    std::vector<float> out(num_elements, 100.0F);
    EXPECT_EQ(decode_on_device(options, packets, 3, out, kContext, cut).reported, 0U);
    EXPECT_EQ(bits_of(out), bits_of(expected));
  }
}

// The order in which threads and groups happen to run changes nothing.
TEST(TagcDevice, AnyOrderOfThreadsGivesTheSamePacket) {
  const Options options = options_of(4, .8, 64);
  const std::vector<float> piece = make_piece(Data::kFewDistinct, 6000, 9);
  const TagcDevice codec(options);
  std::set<std::vector<uint8_t>> packets;
  for (uint32_t seed = 0; seed < 20; ++seed) {
    Memory packet(codec.packet_bytes(6000));
    Memory scratch(codec.encode_scratch_bytes(6000));
    std::vector<float> residual(6000);
    const kernels::DeviceContext context = device_context(kContext);
    kernels::DeviceCounts counts;
    EmulatedDevice device(19, 4, seed);
    kernels::emulated::encode_tagc(device, codec.encode_job(buffer_of(piece), buffer_of(residual), packet.buffer(),
                                                            &context, &counts, scratch.buffer()));
    packets.insert(packet.copy());
  }
  EXPECT_EQ(packets.size(), 1U);
}

class TagcDeviceCorruption : public testing::Test {
 protected:
  static constexpr int64_t kElements = 3001;
  static constexpr Cut kCut = {32, 2};

  TagcDeviceCorruption() : options_(options_of(4, .9, 64)) {
    std::vector<float> piece = make_piece(Data::kHeavyTail, kElements, 14);
    piece[200] = kNan;
    packet_ = encode_on_device(options_, piece, std::vector<float>(kElements), kContext, kCut).packet;
  }
  kernels::DeviceFault fault_of(const std::vector<uint8_t>& packets, int num_packets = 1,
                                PacketContext context = kContext) {
    std::vector<float> out(kElements);
    return decode_on_device(options_, packets, num_packets, out, context, kCut);
  }
  // Message of the CPU codec.
  std::string cpu_message(const std::vector<uint8_t>& packet, PacketContext context = kContext) {
    Memory aligned(static_cast<int64_t>(packet.size()));
    std::copy(packet.begin(), packet.end(), aligned.data());
    std::vector<float> out(kElements);
    return message_of([&] { TagcCodec(options_).decode_sum(aligned.buffer(), 1, buffer_of(out), context, {}); });
  }
  template <typename Call>
  static std::string message_of(Call call) {
    try {
      call();
    } catch (const PacketError& error) {
      return error.what();
    }
    return "";
  }
  // Gives a damaged packet the checksum that fits it.
  static void seal(std::vector<uint8_t>& packet);

  Options options_;
  std::vector<uint8_t> packet_;
};

TEST_F(TagcDeviceCorruption, FlippedBitsAreFoundAndNamedAsOnCpu) {
  EXPECT_EQ(fault_of(packet_).code, kernels::DeviceFault::kNone);
  std::mt19937 random(3);
  for (int64_t trial = 0; trial < 48 * 8 + 300; ++trial) {
    // Every bit of the header, then some of the rest.
    const auto bit = static_cast<size_t>(trial < 48 * 8 ? trial : 48 * 8 + random() % (8 * packet_.size() - 48 * 8));
    std::vector<uint8_t> damaged = packet_;
    damaged[bit / 8] ^= static_cast<uint8_t>(1 << bit % 8);
    const kernels::DeviceFault fault = fault_of(damaged);
    const std::string message = message_of([&] { throw_if_reported(fault); });
    ASSERT_NE(message, "") << bit;
    ASSERT_EQ(message, cpu_message(damaged)) << bit;
  }
}

TEST_F(TagcDeviceCorruption, MadeUpPacketsAreNamedAsOnCpu) {
  const auto layout = tagc_layout(TagcSettings(options_).shape(kElements));
  const auto expect_fault = [&](kernels::FaultKind kind, auto damage) {
    std::vector<uint8_t> damaged = packet_;
    damage(damaged);
    seal(damaged);
    const kernels::DeviceFault fault = fault_of(damaged);
    EXPECT_EQ(fault.kind(), kind);
    EXPECT_EQ(fault.packet(), 0);
    EXPECT_EQ(message_of([&] { throw_if_reported(fault); }), cpu_message(damaged));
  };
  using kernels::FaultKind;
  expect_fault(FaultKind::kPadding, [&](auto& bytes) { bytes[63] = 1; });
  expect_fault(FaultKind::kPadding, [&](auto& bytes) { bytes[layout.index - 1] = 1; });
  expect_fault(FaultKind::kFlags, [&](auto& bytes) { bytes[layout.flags + 7] = 0x80; });
  expect_fault(FaultKind::kIndex, [&](auto& bytes) { bytes[layout.index + 3001 / 8] |= 0x80; });
  expect_fault(FaultKind::kEmptyBlock, [&](auto& bytes) {
    for (int64_t byte = 0; byte < 8; ++byte) {
      bytes[layout.index + 3 * 8 + byte] = 0;  // of the block that is flagged
    }
  });
  expect_fault(FaultKind::kDoesNotPeel, [&](auto& bytes) {
    for (int64_t byte = 8 * 8; byte < 46 * 8; ++byte) {
      bytes[layout.index + byte] = 0xff;
    }
  });
  expect_fault(FaultKind::kCellsLeft, [&](auto& bytes) { bytes[layout.sketch + 4 * 64 * 5 + 3] ^= 1; });
}

void TagcDeviceCorruption::seal(std::vector<uint8_t>& packet) {
  Checksum checksum;
  checksum.add(packet.data() + sizeof(PacketHeader), static_cast<int64_t>(packet.size() - sizeof(PacketHeader)));
  const uint64_t value = checksum.value();
  std::memcpy(packet.data() + offsetof(PacketHeader, checksum), &value, sizeof(value));
}

TEST_F(TagcDeviceCorruption, AnotherContextIsNamedAsOnCpu) {
  const PacketContext other_step = {kContext.unit_hash, kContext.step + 1};
  const kernels::DeviceFault fault = fault_of(packet_, 1, other_step);
  EXPECT_EQ(message_of([&] { throw_if_reported(fault); }), cpu_message(packet_, other_step));
  EXPECT_NE(cpu_message(packet_, other_step).find("step 7 where 8"), std::string::npos);
}

TEST_F(TagcDeviceCorruption, NamesTheFirstPacketAndAddsNone) {
  std::vector<uint8_t> packets = packet_;
  packets.insert(packets.end(), packet_.begin(), packet_.end());
  packets.insert(packets.end(), packet_.begin(), packet_.end());
  packets[packet_.size() + 100] ^= 1;
  packets[2 * packet_.size() + 5] ^= 1;
  std::vector<float> out(kElements, 5.0F);
  const kernels::DeviceFault fault = decode_on_device(options_, packets, 3, out, kContext, kCut);
  EXPECT_EQ(fault.packet(), 1);
  EXPECT_EQ(fault.kind(), kernels::FaultKind::kChecksum);
  EXPECT_EQ(out, std::vector<float>(kElements, 5.0F));
}

TEST_F(TagcDeviceCorruption, NothingIsDecodedAfterAFault) {
  const TagcDevice codec(options_);
  Memory packet(static_cast<int64_t>(packet_.size()));
  std::copy(packet_.begin(), packet_.end(), packet.data());
  Memory scratch(codec.decode_scratch_bytes(kElements, 1));
  const kernels::DeviceContext context = device_context(kContext);
  kernels::DeviceFault fault;
  fault.code = kernels::DeviceFault::code_of(2, kernels::FaultKind::kIndex);
  fault.reported = 1;
  std::vector<float> out(kElements);
  EmulatedDevice device(32, 2, 1);
  kernels::emulated::decode_tagc(
      device, codec.decode_job(packet.buffer(), 1, buffer_of(out), &context, &fault, scratch.buffer()));
  EXPECT_EQ(out, std::vector<float>(kElements));
  EXPECT_EQ(fault.packet(), 2);
}

// For ThreadSanitizer: ties, blocks that are flagged, and keys that are held back.
TEST(TagcDevice, ThreadsAtOnce) {
  std::vector<float> piece = make_piece(Data::kFewDistinct, 1500, 17);
  piece[700] = kNan;
  for (const int64_t num_threads : {1, 3}) {
    const Cut cut = {num_threads, 2, EmulatedDevice::Threads::kAtOnce};
    expect_as_on_cpu(options_of(4, .8), piece, std::vector<float>(1500), cut);
    expect_as_on_cpu(options_of(10, .5), piece, std::vector<float>(1500), cut);
  }
}

TEST(TagcDevice, SequencesDependOnShapesAlone) {
  const auto passes_of = [](Data data) {
    const TagcDevice codec(options_of(10, .9875));
    Memory packet(codec.packet_bytes(4096));
    Memory scratch(codec.encode_scratch_bytes(4096));
    std::vector<float> residual(4096);
    const std::vector<float> piece = make_piece(data, 4096, 1);
    const kernels::DeviceContext context = device_context(kContext);
    kernels::DeviceCounts counts;
    EmulatedDevice device(16, 2, 1);
    kernels::emulated::encode_tagc(device, codec.encode_job(buffer_of(piece), buffer_of(residual), packet.buffer(),
                                                            &context, &counts, scratch.buffer()));
    return device.num_passes();
  };
  for (const Data data : all_data()) {
    EXPECT_EQ(passes_of(data), 13) << to_string(data);
  }
}

TEST(TagcDevice, RejectsWrongBuffers) {
  const TagcDevice codec(options_of(4, .9));
  std::vector<float> piece(100);
  std::vector<float> residual(100);
  Memory packet(codec.packet_bytes(100));
  Memory scratch(codec.encode_scratch_bytes(100));
  const Buffer short_scratch = scratch.buffer().slice(0, codec.encode_scratch_bytes(100) - 1);
  EXPECT_THROW(
      codec.encode_job(buffer_of(piece), buffer_of(residual), packet.buffer(), nullptr, nullptr, short_scratch), Error);
  residual.resize(99);
  EXPECT_THROW(
      codec.encode_job(buffer_of(piece), buffer_of(residual), packet.buffer(), nullptr, nullptr, scratch.buffer()),
      Error);
  EXPECT_THROW(codec.encode_scratch_bytes(kernels::kMaxDeviceElements + 1), Error);
}

}  // namespace
}  // namespace isthmus
